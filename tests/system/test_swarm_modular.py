"""2x2 paths, one of them trained by a swarm and the others by a plain worker: the modules are those
of a run without volunteers.
"""

import dataclasses
import time

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco import trees
from dipaco.cli.swarm_verify import verified
from dipaco.config import MODULAR
from dipaco.runs.opening import create_or_open
from dipaco.swarm.network.credentials import Authority
from dipaco.swarm.network.messages import RUN_OVER
from dipaco.swarm.roles.backbone import Backbone, BackbonePlace
from dipaco.swarm.training.compute import GroupSettings
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.loop import Worker
from dipaco.workers.runners import Volunteers
from tests.support.backbone_rig import Lent
from tests.support.members import join
from tests.support.waiting import until
from tests.workers.conftest import CONFIG

CONFIG = dataclasses.replace(CONFIG, phases=2)
PATH = 1


def worker_of(run, name, **settings):
    """A worker that has joined."""
    return Worker(run, name, Callbacks(), LeaseRenewer(run.open_ledger, name, 60.0), **settings)


def finish(run, *workers):
    deadline = time.monotonic() + 120
    while run.ledger.queue.unfinished():
        done = [worker.run_once() for worker in workers]  # each of them, whatever the first did
        if not any(done):
            assert time.monotonic() < deadline
            time.sleep(0.05)  # until the backbone has seen its volunteers


@pytest.mark.slow
def test_one_path_trained_by_a_swarm_leaves_the_modules_as_plain_workers_do(tmp_path):
    plain, _ = create_or_open(tmp_path / "plain", CONFIG)
    join(plain.ledger, "plain")
    finish(plain, worker_of(plain, "plain"))
    run = trained_by_swarm(tmp_path / "swarm", CONFIG, plain.programs, block_rows=1)
    steps = run.ledger.swarms.steps(MODULAR, PATH)
    assert [one.step for one in steps] == list(range(CONFIG.phases * CONFIG.inner.steps))
    senders = {name.partition("/")[0] for one in steps for name in one.blocks}
    assert senders <= {"ana", "bo", "back"}
    for module in CONFIG.topology.modules:
        ours = dict(trees.flatten(run.parameters(MODULAR, module, CONFIG.phases)))
        theirs = dict(trees.flatten(plain.parameters(MODULAR, module, CONFIG.phases)))
        for name, leaf in ours.items():
            np.testing.assert_allclose(leaf, theirs[name], atol=2e-5)
    for opened in (plain, run):
        opened.ledger.close()


@pytest.mark.slow
def test_a_swarm_with_local_steps_ends_and_its_night_can_be_replayed(tmp_path):
    config = dataclasses.replace(CONFIG, inner=dataclasses.replace(CONFIG.inner, steps=5))
    schedule = config.plan.arm(MODULAR).total_steps
    half = config.inner.batch_size // 2
    run = trained_by_swarm(
        tmp_path, config, block_rows=half, local_steps=3, schedule_steps=schedule
    )
    steps = run.ledger.swarms.steps(MODULAR, PATH)
    assert [one.steps for one in steps] == [3, 2] * config.phases
    found = verified(run, PATH)
    assert (found.num_steps, found.differing) == (len(steps), None)
    lie = steps[1]._replace(sketch=tuple(1.1 * value for value in steps[1].sketch))
    run.ledger.swarms.put_step(MODULAR, PATH, lie)
    assert verified(run, PATH).differing == lie
    run.ledger.close()


def trained_by_swarm(folder, config, programs=None, **options):
    """A finished run, one of whose paths volunteers have trained."""
    run, _ = create_or_open(folder, config)
    if programs is not None:
        run.programs = programs  # compiled once
    authority = Authority(Authority.new_key())
    credentials = [authority.issue(name, "volunteer", time.time(), 1.0) for name in ("ana", "bo")]
    own = authority.issue("back", "backbone", time.time(), 1.0)
    for credential in (*credentials, own):
        certificate = credential.certificate
        run.ledger.swarms.issue(certificate.serial, certificate.name, certificate.role, 2e9)
    for name in ("back", "plain"):
        join(run.ledger, name)
    settings = GroupSettings(
        model=config.model, inner=config.inner, length=config.data.length, **options
    )
    backbone = Backbone(
        run.open_ledger,
        BackbonePlace(MODULAR, PATH, "back"),
        settings,
        own,
        listen="127.0.0.1:0",
        save_seconds=0.0,
    )
    backbone.start()
    volunteers = [Lent(backbone.address, credential) for credential in credentials]
    try:
        leading = worker_of(
            run, "back", runner=Volunteers(run, backbone.run_phase), kinds=("train",)
        )
        # Until the backbone has volunteers, any worker trains it.
        until(lambda: run.ledger.swarms.backbones(MODULAR, PATH, is_staffed=True))
        finish(run, worker_of(run, "plain"), leading)
        assert {newest.phase for newest in run.ledger.progress.newest_phases()} == {
            CONFIG.phases - 1
        }
    finally:
        for one in volunteers:
            one.leave()
        backbone.close(RUN_OVER)
    return run
