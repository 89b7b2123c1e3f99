"""Contributions are read in order, one ahead, in a thread that ends with the loop."""

import threading

import pytest

from dipaco.workers.averaging import one_ahead

DEADLINE_SECONDS = 30


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_every_item_comes_loaded_and_in_order(count):
    with one_ahead(str, range(count)) as loaded:
        assert list(loaded) == [str(item) for item in range(count)]
    assert prefetch_threads() == []


def test_only_the_next_item_is_loaded_while_one_is_used():
    begun = [threading.Event() for _ in range(4)]

    def load(item):
        begun[item].set()
        return item

    with one_ahead(load, range(4)) as loaded:
        for item in loaded:
            # Waits for the thread: without one ahead, the next would begin when it is asked for.
            assert all(event.wait(DEADLINE_SECONDS) for event in begun[: item + 2])
            assert not any(event.is_set() for event in begun[item + 2 :])


def test_an_error_of_loading_is_raised_in_its_turn_and_ends_the_thread():
    def load(item):
        if item == 2:
            raise KeyError(item)
        return item

    seen = []
    with pytest.raises(KeyError), one_ahead(load, range(9)) as loaded:
        seen.extend(loaded)
    with pytest.raises(ZeroDivisionError), one_ahead(load, range(9)) as loaded:
        seen.append(next(loaded) / 0)
    assert seen == [0, 1]
    assert prefetch_threads() == []
