"""The storm in its smallest forms, and that its checker does not let anything pass."""

import os
import subprocess
import sys
import time
from collections import Counter

import pytest
from storms import checker
from support import wall_clock

from dipaco.runs.opening import reading
from tests.support.tiny_run import in_ledger


@pytest.fixture
def storm(tool):
    """`storm(*options)`: its last line, and everything that it printed."""

    def run_storm(*options):
        answer, said = tool("storm.py", *options)
        assert answer["digest_equal"], said
        assert (answer["documents_lost"], answer["documents_twice"]) == (0, 0)
        assert answer["lies_unsaid"] == []
        return answer, said

    return run_storm


@pytest.fixture
def clock(tmp_path):
    """A wall clock that jumps, for other processes."""
    if (library := wall_clock.build(tmp_path)) is None:
        pytest.skip("there is no C compiler here: the storm has no jumping clocks either")
    return wall_clock.WallClock(library, tmp_path / "clock")


def printed(clock, code):
    """By a process that reads this clock."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600,
        env={**os.environ, **clock.environment},
    ).stdout  # fmt: skip


def with_every_fault(storm, *options):
    """A storm in which each fault found its moment."""
    answer, said = storm(*options)
    assert not answer["never"], said
    return answer, said


def test_a_training_in_a_storm_ends_with_the_bits_of_algorithm_1(storm, browser, tmp_path):
    faults = ["SIGKILL", "contribution: NaN", "flipped byte", "SIGKILL of an executor", "SIGTERM"]
    if wall_clock.build(tmp_path) is not None:
        faults.insert(1, "wall clock jumps")
    # Long enough that each finds its moment, on a machine of any speed; then as fast as it can.
    options = f"--phases 16 --steps 8 --workers 2 --faults {len(faults)} --kill-every 1"
    paced = "--task-seconds 2 --lease-seconds 3 --replay"
    page_and_faults = "--page", str(tmp_path / "page.html"), "--only", ",".join(faults)
    words = *options.split(), *paced.split(), *page_and_faults
    answer, said = with_every_fault(storm, *words)
    assert answer["lies_refused"] == answer["faults"]["contribution: NaN"], said
    # What its dashboard says went wrong: which attempt, how it ended, what that cost, and why.
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.locator("#faults tr[data-outcome]").first.wait_for()
    rows = page.locator("#faults tr[data-outcome]").evaluate_all(
        "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
    )
    assert page.evaluate("run.faults.length") == len(rows), "each is on the waterfall"
    page.close()
    # Without a named moment, the worker that is killed may have no task.
    killed = sum(number for name, number in answer["faults"].items() if "SIGKILL " in name)
    ended = Counter(outcome for _, _, outcome, *_ in rows)
    assert ended["lost"] + ended["crash"] >= killed, (rows, said)
    refused = [row for row in rows if row[2] == "postponed" and "NaN" in row[5]]
    assert len(refused) == answer["faults"]["contribution: NaN"], (rows, said)
    assert all(task and cost for *_, task, cost, _ in refused), rows


def test_so_does_one_on_a_database_and_a_store_that_fail(storm, postgresql_server, s3_server):
    """Started by the tool; the fixtures say whether they can be. Machines fetch modules as
    contributions of two bits a value, and keep every other snapshot to themselves.
    """
    faults = ["SIGKILL", "store: 500", "PostgreSQL restarted", "contribution: wrong shape"]
    options = "--phases 10 --steps 8 --workers 2 --faults 4 --kill-every 0.5 --no-named-points"
    places = "--task-seconds 1 --replay --database postgresql --store s3 --outage-seconds 2"
    codec = "--set outer.codec=int2"
    few_bytes = f"{codec} --set retention.send_snapshots_every=2 --only"
    words = *options.split(), *places.split(), *few_bytes.split()
    with_every_fault(storm, *words, ",".join(faults))


def test_with_a_quorum_it_ends_as_algorithm_1_does_with_what_each_step_took(storm):
    """Contributions of two bits a value, of which a damaged one is refused."""
    options = "--phases 8 --steps 10 --workers 2 --faults 2 --kill-every 1 --lease-seconds 2"
    quorum = "--task-seconds 1 --quorum 0.5 --grace-seconds 0.2 --no-named-points"
    codec = "--set outer.codec=int2 --only"
    faults = "SIGSTOP past the lease,contribution: NaN"
    answer, said = with_every_fault(
        storm, *options.split(), *quorum.split(), *codec.split(), faults
    )
    assert answer["late"], said
    assert answer["lies_refused"] == answer["faults"]["contribution: NaN"], said


def test_a_wall_clock_that_jumps_is_read_by_all_in_the_process_and_no_other_clock_jumps(clock):
    clock.jump(-7200)
    code = "import time; print(time.time(), time.monotonic(), time.strftime('%s'))"
    wall, monotonic, text = map(float, printed(clock, code).split())
    assert wall == pytest.approx(time.time() - 7200, abs=60)
    assert text == pytest.approx(wall, abs=60)
    assert monotonic == pytest.approx(time.monotonic(), abs=60)
    assert clock.wrong_readings


@pytest.mark.parametrize("hours", [-2, 4])
def test_what_waits_until_a_time_of_a_wrong_clock_waits_as_long_as_it_should(hours, clock):
    """TensorStore's deadlines are times of the wall clock."""
    clock.jump(hours * 3600)
    code = (
        "import tensorstore, time\n"
        "promise, future = tensorstore.Promise.new()\n"
        "began = time.monotonic()\n"
        "try: future.result(timeout=1.0)\n"
        "except TimeoutError: print(time.monotonic() - began)\n"
    )
    assert float(printed(clock, code)) > 0.9


def test_the_checker_sees_one_changed_digest(tiny, copy_of):
    other = copy_of(tiny)
    with reading(tiny.folder) as there, reading(other.folder) as here:
        assert checker.digests(here) == checker.digests(there)
        assert len(checker.digests(there)) == 4 * 3
    late = "arm = 'modular' AND module = 'late/0001' AND phase = 1"
    in_ledger(other.folder, f"UPDATE modules SET digest = 'f' || substr(digest, 2) WHERE {late}")
    with reading(tiny.folder) as there, reading(other.folder) as here:
        assert checker.digests(here) != checker.digests(there)


@pytest.mark.parametrize(
    ("statement", "lost", "twice"),
    [
        ("DELETE FROM contributions WHERE module = 'early/0000' AND phase = 1 AND path = 1", 12, 0),
        ("UPDATE contributions SET path = 3 WHERE module = 'early/0000' AND phase = 1 AND path = 1",
         12, 12),
        ("UPDATE trained SET losses = '[1, 1]' WHERE arm = 'modular' AND path = 2 AND phase = 0",
         4, 0),
        ("UPDATE trained SET losses = '[1, 1, 1, 1]' WHERE arm = 'modular' AND path = 2 AND"
         " phase = 1", 0, 4),
        ("UPDATE trained SET step = 5 WHERE arm = 'modular' AND path = 2 AND phase = 1", 4, 0),
    ],
)  # fmt: skip
def test_the_checker_counts_rows_that_were_lost_and_rows_that_came_twice(
    tiny, copy_of, statement, lost, twice
):
    run = copy_of(tiny)
    with reading(run.folder) as opened:
        assert checker.rows_lost_and_twice(opened) == (0, 0)
    assert len(in_ledger(run.folder, f"{statement} RETURNING phase")) == 1
    with reading(run.folder) as opened:
        assert checker.rows_lost_and_twice(opened) == (lost, twice)
