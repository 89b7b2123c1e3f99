"""Work on requests, which clients take in turn."""

import asyncio
import threading

import pytest

from dipaco.serving.fairness import FairThreads


def test_clients_take_turns_whatever_one_of_them_has_asked_for():
    may_begin, order = threading.Event(), []

    async def run():
        threads = FairThreads(1, "test")
        first = asyncio.create_task(threads.run("flood", may_begin.wait, 30))
        flood = [asyncio.create_task(threads.run("flood", order.append, n)) for n in range(5)]
        await asyncio.sleep(0)
        other = asyncio.create_task(threads.run("other", order.append, "other"))
        third = asyncio.create_task(threads.run("third", order.append, "third"))
        await asyncio.sleep(0)
        may_begin.set()
        await asyncio.gather(first, *flood, other, third)

    asyncio.run(run())
    assert order == [0, "other", "third", 1, 2, 3, 4]


def test_as_many_jobs_as_threads_run_at_once():
    together = threading.Barrier(3)

    async def run():
        threads = FairThreads(3, "test")
        await asyncio.gather(*(threads.run("one", together.wait, 30) for _ in range(6)))

    asyncio.run(run())


def test_an_error_is_the_callers_and_a_job_whose_caller_is_gone_is_not_begun():
    may_begin, done = threading.Event(), []

    async def run():
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

    asyncio.run(run())
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
