"""Several runs side by side: how many at once, what waits for what, and what is done about deaths.

The engine is a list: at every look the oldest process ends, as the test says.
"""

import pytest

from dipaco.launch.engine import EndedWorker
from dipaco.observe.events import Event
from dipaco.sweeps.jobs import MOST_DEATHS, Job, JobPool


class Processes:
    """An engine without processes."""

    def __init__(self, ends):
        self.running, self.started, self.most = [], [], 0
        self._ends, self.is_stopped = ends, False

    def start(self, spec, name):
        folder = spec.run.rpartition("/")[2]
        self.running.append((name, folder))
        self.started.append(folder)
        self.most = max(self.most, len(self.running))
        return len(self.started)

    def poll(self):
        if not self.running:
            return []
        name, folder = self.running.pop(0)
        return [EndedWorker(name, self._ends(folder))]

    def stop(self, grace_seconds):
        self.is_stopped = True
        return []


@pytest.fixture
def crew(tmp_path):
    """`crew([(title, after), ...], ends)` -> the crew, its engine, and what it told."""

    def make(jobs, ends, at_once=2, is_worked_on=lambda folder: False):
        done, told = set(), []

        def ended(title):
            code = ends(title)
            if code == 0:
                done.add(title)
            return code

        def job(title, after):
            begun = Event("row_goes_on", {"row": title, "done": 0.0})
            folder = tmp_path / title
            return Job(title, folder, "worker", after, lambda: begun, lambda: title in done)

        processes = Processes(ended)
        made = JobPool(
            [job(*each) for each in jobs],
            at_once,
            is_worked_on,
            told.append,
            lambda job: job.folder / "log",
            make_engine=lambda log: processes,
            poll_seconds=0.0,
        )
        return made, processes, told

    return make


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_as_many_at_once_as_asked_and_each_once(crew, at_once):
    made, processes, _ = crew([(name, None) for name in "abcde"], lambda _: 0, at_once)
    assert made.work(lambda: None)
    assert (processes.started, processes.most) == (list("abcde"), at_once)
    assert processes.is_stopped
    assert not made.failed


def test_what_waits_is_started_when_what_it_waits_for_is_done(crew):
    made, processes, _ = crew([("base", None), ("a", "base"), ("b", "base")], lambda _: 0, 3)
    assert made.work(lambda: None)
    assert processes.started == ["base", "a", "b"]
    assert processes.most == 2  # and not three: the rows waited


def test_one_that_fails_takes_those_with_it_that_wait_for_it_and_no_others(crew, tmp_path):
    jobs = [("base", None), ("a", "base"), ("b", None)]
    made, processes, told = crew(jobs, lambda title: 2 if title == "base" else 0)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "log").write_text("Something: first\nTooFew: the last words\n")
    assert made.work(lambda: None)
    assert processes.started == ["base", "b"]
    assert made.failed == {"base": "TooFew: the last words", "a": "it waits for base."}
    assert [str(event) for event in told if event.level == "error"] == [
        "base could not be finished: TooFew: the last words",
        "a could not be finished: it waits for base.",
    ]


def test_one_that_is_killed_is_started_again_but_not_for_ever(crew):
    deaths = iter([-9, -9, 0])
    made, processes, _ = crew([("a", None)], lambda _: next(deaths))
    assert made.work(lambda: None)
    assert processes.started == ["a"] * 3
    assert not made.failed
    made, processes, _ = crew([("a", None)], lambda _: -9)
    assert made.work(lambda: None)
    assert processes.started == ["a"] * (MOST_DEATHS + 1)
    assert "log" in made.failed["a"]


def test_a_run_that_somebody_else_works_on_is_waited_for_and_then_taken_over(crew):
    looks = iter([True, True, False])
    made, processes, told = crew(
        [("a", None)], lambda _: 0, is_worked_on=lambda folder: next(looks, False)
    )
    assert made.work(lambda: None)
    assert processes.started == ["a"]
    assert "another process works on it" in str(told[0])


def test_told_to_end_it_stops_its_processes(crew):
    made, processes, _ = crew([("a", None), ("b", None)], lambda _: 0, at_once=1)
    assert not made.work(made.end)
    assert processes.is_stopped
    assert processes.started == ["a"]
