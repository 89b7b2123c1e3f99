"""Workers as an array of a real Slurm, with the job script of `configs/examples`: preempted for a
more urgent job, they drain, are requeued, and come back.
"""

import json
import sys
from pathlib import Path

import pytest
from support.slurm import slurm, why_not

from dipaco.runs.opening import reading
from tests.support.tiny_run import Fault, facts, report
from tests.support.waiting import until

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "configs" / "examples" / "slurm.sh"
MISBEHAVE = HOME / "tools" / "misbehave.py"


def slow_program(folder: Path, hurry: Path) -> Path:
    """A folder for PATH, whose `dipaco` takes 20 s for a phase until there is a file `hurry`."""
    folder.mkdir()
    request = json.dumps({"task_seconds": 20, "hurry": str(hurry)})
    program = folder / "dipaco"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {MISBEHAVE} '{request}' \"$@\"\n")
    program.chmod(0o755)
    return folder


@pytest.mark.cluster
@pytest.mark.timeout(900)  # whole runs, on machines that may be busy
def test_an_array_of_workers_that_is_preempted_and_requeued_ends_with_the_same_facts(
    dipaco, tiny, command_cache, tmp_path
):
    if (problem := why_not()) is not None:
        pytest.skip(problem)
    folder, hurry = tmp_path / "run", tmp_path / "hurry"
    begun = dipaco("train", tiny.config, "--run", folder, fault=Fault("after claim", "train"))
    assert begun.fired, begun.err
    variables = {
        "PATH": f"{slow_program(tmp_path / 'bin', hurry)}:/usr/sbin:/usr/bin:/sbin:/bin",
        "RUN": str(folder),
        "PYTHONPATH": str(HOME),
        "DIPACO_CACHE": str(command_cache),
        "XLA_FLAGS": "",
    }
    with slurm(tmp_path / "slurm") as cluster, reading(folder) as run:
        job = cluster.submit("--array=0-1", "--partition=spare", str(SCRIPT), variables=variables)
        first = {f"slurm-{job}-{index}-0" for index in (0, 1)}
        held = lambda: {claim.worker for claim in run.ledger.queue.held()}  # noqa: E731
        until(lambda: first <= held(), 120.0, cluster.log)

        cluster.submit("--partition=urgent", "--exclusive", "--wrap=true", "--output=urgent.log")
        until(lambda: not first & held(), 120.0, cluster.log)
        hurry.touch()
        until(lambda: not cluster.jobs(), 120.0, cluster.log)
        events = run.ledger.history.after()
        workers = {member.name for member in run.ledger.members.list()}
    saved = {event.worker for event in events if event.outcome == "saved"}
    assert saved & first, "no worker saved its phase part-way"
    assert {f"slurm-{job}-{index}-1" for index in (0, 1)} <= workers, "a job did not come back"
    assert facts(folder) == facts(tiny.folder)
    assert report(folder) == report(tiny.folder)
