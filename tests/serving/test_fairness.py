"""What clients share: one queue and one way of giving out places."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.request_queue import GenerationRequest, RowShares, Stream, line_of
from dipaco.serving.fairness import ClientPlaces, FairQueue


def queue_of(*items):
    queue = FairQueue()
    for key, item in items:
        queue.put(key, item)
    return queue


def all_of(queue, held=None):
    order = []
    while (item := queue.next(held)) is not None:
        order.append(item)
    assert not len(queue)
    return order


def test_lines_take_turns_and_within_a_line_the_first_comes_first():
    queue = queue_of(("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("b", "b2"), ("c", "c1"))
    assert len(queue) == 6
    assert all_of(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_holds_least_is_next_and_who_may_not_be_served_waits():
    holding = {"a": 2, "b": 1, "c": 0}
    queue = queue_of(*((key, key) for key in holding))

    def held(key, first):
        return None if key == "c" else holding[key]

    assert [queue.next(held) for _ in range(3)] == ["b", "a", None]
    assert list(queue) == ["c"]


def test_an_item_that_is_put_back_is_the_first_of_its_line():
    queue = queue_of(("a", 1), ("a", 2), ("b", 3))
    queue.put_back("a", queue.next())
    assert all_of(queue) == [3, 1, 2]


def test_lines_that_are_tried_in_vain_keep_their_order():
    queue, tried = queue_of(("a", "a1"), ("b", "b1"), ("b", "b2"), ("c", "c1")), []
    for _ in range(6):
        item = queue.next(lambda key, first: None if key in tried[len(tried) // 3 * 3 :] else 0)
        queue.put_back(item[0], item)
        tried.append(item[0])
    assert tried == ["a", "b", "c"] * 2


def test_an_item_that_leaves_costs_its_line_no_turn():
    queue = queue_of(("a", 1), ("a", 2), ("b", 3))
    assert queue.remove("a", 1)
    assert not queue.remove("a", 1)
    assert not queue.remove("c", 1)
    assert all_of(queue) == [2, 3]


def test_a_line_that_has_had_its_turn_elsewhere_comes_last():
    queue = queue_of(("a", 1), ("b", 2))
    queue.end_turn("a")
    queue.end_turn("nobody")
    assert all_of(queue) == [2, 1]


def test_the_whole_order_is_as_if_those_before_had_been_served():
    queue = queue_of(("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("b", "b2"), ("c", "c1"))
    first = {"a": 0, "b": 1, "c": 1}

    def held(key, line):
        return range(first[key], first[key] + len(line))

    assert queue.in_order(held) == ["a1", "a2", "b1", "c1", "a3", "b2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
def test_nobody_is_served_twice_while_another_waits_that_holds_no_more(steps):
    """Each step adds an item or serves one; what is served is held for ever."""
    queue, holding, waiting = FairQueue(), collections.Counter(), collections.Counter()
    for key, is_new in steps:
        if is_new:
            queue.put(key, key)
            waiting[key] += 1
        elif (served := queue.next(lambda key, first: holding[key])) is not None:
            assert holding[served] == min(holding[key] for key in waiting.elements())
            holding[served] += 1
            waiting[served] -= 1
    assert len(queue) == waiting.total()


class EndlessRows(RowShares):
    """Counts rows as they are given; a path gets at most three."""

    def __init__(self):
        super().__init__({}, LoopLimits(), 0)

    def may_begin(self, client, key):
        return self.by_path[key] < 3

    def order_of(self, streams):
        queue, order = queue_of(*((line_of(stream), stream) for stream in streams)), []
        while stream := queue.next(self.held):
            order.append(stream)
            self.by_path["", stream.request.path] += 1
            self.by_client[stream.request.client] += 1
        assert len(queue) == len(streams) - len(order)
        return order


def stream_of(path, client=""):
    return Stream(GenerationRequest(prompt_ids=(1,), path=path, max_new_tokens=1, client=client))


def test_a_flood_for_one_path_does_not_starve_another():
    flood, others = [stream_of(0) for _ in range(3)], [stream_of(1) for _ in range(2)]
    shares = EndlessRows()
    shares.by_path["", 0] = 1
    # And path 0 has its three.
    assert shares.order_of([*flood, *others]) == [others[0], flood[0], others[1], flood[1]]


def test_a_flood_by_one_client_does_not_starve_another():
    flood = [stream_of(path, "a") for path in (0, 1, 2, 0)]
    others = [stream_of(0, "b") for _ in range(2)]
    order = EndlessRows().order_of([*flood, *others])
    assert [stream.request.client for stream in order] == ["a", "b", "a", "b", "a"]
    assert order[1:4:2] == others


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 20)), max_size=60),
    st.integers(1, 40),
)
def test_no_client_is_kept_from_its_share_of_places_and_all_are_bounded(asked, places):
    shared, held = ClientPlaces(), collections.Counter()
    for client, number in asked:
        share = places // len({*held, client})
        if shared.take(client, number, places):
            held[client] += number
        else:
            assert held[client] + number > share
            assert held.total() + number > places
    assert held.total() <= places * (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
