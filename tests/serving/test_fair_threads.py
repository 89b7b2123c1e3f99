"""Work on requests, which clients take in turn."""

import asyncio
import threading

import pytest

from dipaco.serving.fairness import FairBatches, FairThreads


async def test_clients_take_turns_whatever_one_of_them_has_asked_for():
    may_begin, order = threading.Event(), []
    threads = FairThreads(1, "test")
    first = asyncio.create_task(threads.run("flood", may_begin.wait, 30))
    flood = [asyncio.create_task(threads.run("flood", order.append, n)) for n in range(5)]
    await asyncio.sleep(0)
    other = asyncio.create_task(threads.run("other", order.append, "other"))
    third = asyncio.create_task(threads.run("third", order.append, "third"))
    await asyncio.sleep(0)
    may_begin.set()
    await asyncio.gather(first, *flood, other, third)
    assert order == [0, "other", "third", 1, 2, 3, 4]


async def test_as_many_jobs_as_threads_run_at_once():
    together = threading.Barrier(3)
    threads = FairThreads(3, "test")
    await asyncio.gather(*(threads.run("one", together.wait, 30) for _ in range(6)))


async def test_an_error_is_the_callers_and_a_job_whose_caller_is_gone_is_not_begun():
    may_begin, done = threading.Event(), []
    threads = FairThreads(1, "test")
    first = asyncio.create_task(threads.run("one", may_begin.wait, 30))
    gone = asyncio.create_task(threads.run("one", done.append, "gone"))
    await asyncio.sleep(0)
    gone.cancel()
    failing = asyncio.create_task(threads.run("one", int, "seven"))
    last = asyncio.create_task(threads.run("one", done.append, "last"))
    await asyncio.sleep(0)
    may_begin.set()
    with pytest.raises(ValueError, match="seven"):
        await failing
    await asyncio.gather(first, last)
    assert done == ["last"]


def test_a_thread_is_free_again_whatever_its_function_raises_and_whoever_is_left_to_hear():
    threads, may_end = FairThreads(1, "test"), threading.Event()

    async def leave():
        waiting = asyncio.create_task(threads.run("one", may_end.wait, 30))
        await asyncio.sleep(0)
        waiting.cancel()

    async def go_on():
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(threads.run("one", next, iter(())), 30)
        return await asyncio.wait_for(threads.run("one", lambda: 7), 30)

    async def go_on_before_it_ends():
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        return await go_on()

    asyncio.run(leave())
    assert asyncio.run(go_on_before_it_ends()) == 7


class Slow:
    """Doubles its inputs. The first batch waits until it may continue."""

    def __init__(self):
        self.batches, self.may_continue = [], threading.Event()

    def __call__(self, inputs):
        self.batches.append(list(inputs))
        assert self.may_continue.wait(30)
        if 13 in inputs:
            raise ValueError("thirteen")
        return [2 * value for value in inputs]


def computed(asked, leaving=()):
    """The batches, and the outputs or errors of `asked`: clients with their values, all of which
    come during the batch of the first. Callers at the places `leaving` go before it ends.
    """
    slow = Slow()

    async def run():
        batches = FairBatches(slow, 3, "test")
        tasks = [asyncio.create_task(batches.compute(*asked[0]))]
        while not slow.batches:
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(batches.compute(*each)) for each in asked[1:]]
        await asyncio.sleep(0)
        for place in leaving:
            tasks[place].cancel()
        slow.may_continue.set()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    return slow.batches, asyncio.run(run())


def test_what_comes_during_a_batch_is_the_next_one_in_turns():
    flood = [("flood", number) for number in range(6)]
    batches, outputs = computed([*flood, ("other", 10), ("third", 20)])
    assert batches == [[0], [1, 10, 20], [2, 3, 4], [5]]
    assert outputs == [0, 2, 4, 6, 8, 10, 20, 40]


async def test_what_comes_together_is_one_batch():
    batches = FairBatches(lambda values: [tuple(values)] * len(values), 8, "test")
    asked = (batches.compute("one", number) for number in range(3))
    assert await asyncio.gather(*asked) == [(0, 1, 2)] * 3


def test_an_error_reaches_every_value_of_its_batch_and_no_other():
    batches, outputs = computed([("one", number) for number in (0, 1, 13, 2, 5)])
    assert batches == [[0], [1, 13, 2], [5]]
    assert [outputs[place] for place in (0, 4)] == [0, 10]
    assert [str(outputs[place]) for place in (1, 2, 3)] == ["thirteen"] * 3


def test_a_value_whose_caller_is_gone_is_in_no_batch_that_begins_later():
    batches, outputs = computed([("one", number) for number in range(4)], leaving=(0, 2))
    assert batches == [[0], [1, 3]]
    assert (outputs[1], outputs[3]) == (2, 6)
