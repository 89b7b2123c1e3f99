"""A pool of jobs: how many run at once, what waits for what, and restarts.

The engine is a list: at every poll the oldest process ends with the code that the test gives.
"""

import pytest

from dipaco.errors import DipacoError, RunOfOtherVersion
from dipaco.launch.engine import EndedWorker
from dipaco.observe.events import Event
from dipaco.sweeps.errors import OtherBaseModel
from dipaco.sweeps.jobs import MAX_RESTARTS, Job, JobPool


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
def pool(tmp_path):
    """`pool([(title, after), ...], ends)` -> the pool, its engine, and its events."""

    def make(
        jobs,
        ends,
        max_running=2,
        is_worked_on=lambda folder: False,
        follows=None,
        refused=(),
    ):
        done, events = set(), []

        def ended(title):
            code = ends(title)
            if code == 0:
                done.add(title)
            return code

        def job(title, after):
            folder = tmp_path / title
            before = (follows or {}).get(title)

            def begin():
                if title in refused:
                    raise OtherBaseModel(folder="base", row=title)
                return Event("row_goes_on", {"row": title, "done": 0.0})

            return Job(title, folder, "worker", after, before, begin, lambda: title in done)

        processes = Processes(ended)
        made = JobPool(
            [job(*each) for each in jobs],
            max_running,
            is_worked_on,
            events.append,
            lambda job: job.folder / "log",
            make_engine=lambda log: processes,
            poll_seconds=0.0,
        )
        return made, processes, events

    return make


@pytest.mark.parametrize("max_running", [1, 2, 3])
def test_each_job_runs_once_and_as_many_at_once_as_allowed(pool, max_running):
    made, processes, _ = pool([(name, None) for name in "abcde"], lambda _: 0, max_running)
    assert made.work(lambda: None)
    assert (processes.started, processes.most) == (list("abcde"), max_running)
    assert processes.is_stopped
    assert not made.failed


def test_a_job_starts_when_the_job_before_it_is_done(pool):
    made, processes, _ = pool([("base", None), ("a", "base"), ("b", "base")], lambda _: 0, 3)
    assert made.work(lambda: None)
    assert processes.started == ["base", "a", "b"]
    assert processes.most == 2  # and not three: the rows waited


@pytest.mark.parametrize("code", [DipacoError.exit_code, RunOfOtherVersion.exit_code])
def test_a_failed_job_fails_the_jobs_that_wait_for_it_and_no_others(pool, tmp_path, code):
    jobs = [("base", None), ("a", "base"), ("b", None)]
    made, processes, events = pool(jobs, lambda title: code if title == "base" else 0)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "log").write_text("Something: first\nTooFew: the last words\n")
    assert made.work(lambda: None)
    assert processes.started == ["base", "b"]
    assert made.failed == {"base": "TooFew: the last words", "a": "it waits for base."}
    assert [str(event) for event in events if event.level == "error"] == [
        "base could not be finished: TooFew: the last words",
        "a could not be finished: it waits for base.",
    ]


def test_a_job_that_cannot_begin_fails_alone_with_what_waits_for_it(pool):
    jobs = [("a", None), ("bad", None), ("after bad", "bad"), ("b", None)]
    made, processes, events = pool(jobs, lambda _: 0, refused={"bad"})
    assert made.work(lambda: None)
    assert processes.started == ["a", "b"]
    assert list(made.failed) == ["bad", "after bad"]
    assert "holds another base model" in made.failed["bad"]
    assert [event.level for event in events if event.name == "row_failed"] == ["error"] * 2


def test_what_has_failed_or_is_done_is_not_still_to_do(pool, tmp_path):
    jobs, looks = [("base", None), ("a", "base"), ("b", None)], []
    made, *_ = pool(jobs, lambda title: 2 if title == "base" else 0, 1)
    assert made.work(lambda: looks.append({folder.name for folder in made.still_to_do}))
    assert looks == [{"a", "b"}, set()]


def test_a_killed_job_is_restarted_a_few_times(pool):
    deaths = iter([-9, -9, 0])
    made, processes, _ = pool([("a", None)], lambda _: next(deaths))
    assert made.work(lambda: None)
    assert processes.started == ["a"] * 3
    assert not made.failed
    made, processes, _ = pool([("a", None)], lambda _: -9)
    assert made.work(lambda: None)
    assert processes.started == ["a"] * (MAX_RESTARTS + 1)
    assert "log" in made.failed["a"]


def test_a_run_that_another_process_works_on_is_waited_for_and_then_taken_over(pool):
    looks = iter([True, True, False])
    made, processes, events = pool(
        [("a", None)], lambda _: 0, is_worked_on=lambda folder: next(looks, False)
    )
    assert made.work(lambda: None)
    assert processes.started == ["a"]
    assert "another process works on it" in str(events[0])


def test_after_end_its_processes_are_stopped(pool):
    made, processes, _ = pool([("a", None), ("b", None)], lambda _: 0, max_running=1)
    assert not made.work(made.end)
    assert processes.is_stopped
    assert processes.started == ["a"]


@pytest.mark.parametrize("code", [0, 2])
def test_a_job_that_follows_another_starts_when_that_one_is_done_or_has_failed(pool, code):
    """A base model that takes its text from the run of another trains even if that one cannot."""
    made, processes, _ = pool(
        [("base", None), ("other", None), ("row", "other")],
        lambda title: code if title == "base" else 0,
        follows={"other": "base"},
    )
    assert made.work(lambda: None)
    assert processes.started == ["base", "other", "row"]
    assert processes.most == 1
    assert list(made.failed) == (["base"] if code else [])
