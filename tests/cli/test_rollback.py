"""`dipaco rollback` and `dipaco upgrade`: a run at an earlier phase, and of another version."""

import itertools
import signal

import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from dipaco.cli import roles
from dipaco.cli.run_commands import stopped
from dipaco.config import MODULAR
from dipaco.control.members.swarms import GroupStep
from dipaco.errors import NOT_NOW
from dipaco.runs.opening import reading
from dipaco.swarm.training.sum_sketch import sketch_of
from dipaco.workers.replay import path_steps
from tests.cli.conftest import as_json
from tests.support.members import join
from tests.support.tiny_run import in_ledger
from tests.support.waiting import until


def test_a_run_that_was_rolled_back_is_at_an_earlier_phase(here, tiny, copy_of):
    """That it ends with the same facts is shown in `tests/workers/test_rollback.py`."""
    run = copy_of(tiny)
    ended = here("rollback", "--run", run.folder, "--phase", 1)
    assert ended.code == 0, ended.err
    assert (
        "The run is at phase 1 again. Set aside: 4 modules, 8 contributions, 4 trained" in ended.out
    )
    status = as_json(here("status", "--run", run.folder, "--json"))
    assert {module["phase"] for module in status["modules"].values()} == {1}
    assert status["rollbacks"][0]["set_aside"]["modules"] == 4
    ended = here("rollback", "--run", run.folder, "--phase", 7)
    assert ended.code == 2
    assert "CannotRollBack: The run cannot go back to phase 7: it is at phase 1." in ended.err


def test_a_run_of_another_version_is_refused_until_it_is_upgraded(here, tiny, copy_of):
    run = copy_of(tiny)
    in_ledger(run.folder, "UPDATE meta SET value = '0.4.99' WHERE key = 'version'")
    for verb in ("status", "worker"):
        ended = here(verb, "--run", run.folder)
        assert ended.code == NOT_NOW  # those who start workers again do so until the upgrade
        assert "is a run of dipaco 0.4.99; this is" in ended.err
        assert "`dipaco upgrade --run RUN`" in ended.err
    ended = here("upgrade", "--run", run.folder)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("The run was of dipaco 0.4.99 and is of ")
    assert "resume" not in ended.out
    assert here("status", "--run", run.folder).code == 0


@pytest.mark.parametrize("command", ["pause", "drain"])
def test_an_upgrade_leaves_a_run_told_what_it_was_told(here, tiny, copy_of, command):
    run = copy_of(tiny)
    assert here(command, "--run", run.folder).code == 0
    ended = here("upgrade", "--run", run.folder)
    assert ended.code == 0, ended.err
    assert f"It was told to {command}: `dipaco resume --run {run.folder}`" in ended.out
    with reading(run.folder) as opened:
        assert opened.ledger.meta.command().name == command


def test_a_process_that_a_drain_sends_away_says_that_it_may_come_back(
    here, half, copy_of, monkeypatch
):
    """With exit code 0 those who keep workers alive took the run for finished: nobody came back."""
    run = copy_of(half)
    where = ("--run", run.folder)
    with reading(run.folder) as opened:
        opened.ledger.meta.set_command("drain")
    assert here("train", run.config, *where).code == NOT_NOW
    assert here("launch", run.config, *where, "--workers", 1).code == NOT_NOW
    # The upgrade may have ended its drain before the process looks again.
    monkeypatch.setattr(
        roles, "stopped", lambda ledger: (ledger.meta.set_command("run"), stopped(ledger))[1]
    )
    ended = here("worker", *where)
    assert (ended.code, "Stopped. The same command goes on" in ended.out) == (NOT_NOW, True)


def test_an_upgrade_that_is_stopped_leaves_the_run_command_as_it_was(dipaco, here, tiny, copy_of):
    run = copy_of(tiny)
    with reading(run.folder) as opened:
        join(opened.ledger, "back")
        upgrade = dipaco.start("upgrade", "--run", run.folder, "--wait-seconds", 600)
        until(lambda: opened.ledger.meta.command().name == "drain", 120.0)
        upgrade.signal(signal.SIGTERM)
        assert upgrade.wait().code == 130
        assert opened.ledger.meta.command().name == "run"
    ended = here("upgrade", "--run", run.folder, "--wait-seconds", "nan")
    assert (ended.code, "`--wait-seconds` is nan." in ended.err) == (2, True)


@pytest.mark.slow
def test_a_night_is_replayed_and_the_step_of_a_lie_is_named_with_whose_rows_it_had(
    dipaco, here, tiny, copy_of
):
    folder = copy_of(tiny).folder
    ended = dipaco("swarm", "verify", "--run", folder)
    assert (ended.code, ended.out) == (0, "Every module has the same bits.\n"), ended.err
    with reading(folder) as run:
        num_steps = 2 * run.config.inner.steps
        night = list(itertools.islice(path_steps(run, 1), num_steps))
        for one in night:
            mean = ravel_pytree(one.gradient)[0]
            put_step(run, one.step, np.asarray(mean))
    ended = here("swarm", "verify", "--run", folder)
    assert ended.code == 0, ended.err
    assert f"path 1: {num_steps} steps have the gradient of their rows" in ended.out
    with reading(folder) as run:
        put_step(run, 3, np.asarray(ravel_pytree(night[3].gradient)[0]) * np.float32(1.01))
    ended = here("swarm", "verify", "--run", folder)
    assert ended.code == 1, ended.err
    assert "path 1: the mean of step 3 is 0.01 of its size away" in ended.out
    assert "Blocks by peer: ana/1 2, eve/1 1" in ended.out


def put_step(run, step, mean):
    """The record of a step by volunteers, with this mean gradient."""
    lineage, blocks = f"after {step}", {"ana/1": [0, 2], "eve/1": [1]}
    sketch = tuple(sketch_of(mean, lineage.encode(), 0))
    of_step = GroupStep(step, lineage, 1.0, 9.0, 1.0, blocks, sketch=sketch)
    run.ledger.swarms.put_step(MODULAR, 1, of_step)
