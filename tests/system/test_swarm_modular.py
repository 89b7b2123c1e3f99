"""2x2 paths, one of them trained by a swarm and the others by a plain worker: the modules are those
of a run without volunteers. And the verbs, where they need no group.
"""

import asyncio
import dataclasses
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.runs.opening import create_or_open, reading
from dipaco.swarm.network.credentials import Authority
from dipaco.swarm.roles.backbone import Backbone, BackbonePlace
from dipaco.swarm.roles.session import SessionConfig, run_session
from dipaco.swarm.training.compute import GroupSettings
from dipaco.workers.callbacks import NullCallbacks
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.loop import Worker
from dipaco.workers.runners import Volunteers
from tests.workers.conftest import CONFIG

CONFIG = dataclasses.replace(CONFIG, phases=2)
PATH = 1


def worker_of(run, name, **settings):
    run.ledger.members.join(name, host="here", pid=1, process_id="one", machine="one", version="0")
    return Worker(run, name, NullCallbacks(), LeaseRenewer(run.open_ledger, name, 60.0), **settings)


def finish(run, *workers):
    deadline = time.monotonic() + 120
    while run.ledger.queue.unfinished():
        done = [worker.run_once() for worker in workers]  # each of them, whatever the first did
        if not any(done):
            assert time.monotonic() < deadline
            time.sleep(0.05)  # until the backbone has seen its volunteers


def start_session(backbone, credential, computes, stop):
    config = SessionConfig(backbone.address, computes=computes, listens=True, bytes_per_second=None)

    async def session():
        leaving = asyncio.Event()

        async def look():
            while not stop.is_set():
                await asyncio.sleep(0.05)
            leaving.set()

        looking = asyncio.ensure_future(look())
        await run_session(config, credential, leaving, lambda sentence: None)
        looking.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(session()), daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_one_path_trained_by_a_swarm_leaves_the_modules_as_plain_workers_do(tmp_path):
    plain, _ = create_or_open(tmp_path / "plain", CONFIG)
    finish(plain, worker_of(plain, "plain"))
    run, _ = create_or_open(tmp_path / "swarm", CONFIG)
    run.programs = plain.programs  # compiled once
    authority = Authority(Authority.new_key(), run.identity)
    credentials = [authority.issue(name, "volunteer", time.time(), 1.0) for name in ("ana", "bo")]
    own = authority.issue("back", "backbone", time.time(), 1.0)
    for credential in (*credentials, own):
        certificate = credential.certificate
        run.ledger.swarms.issue(certificate.serial, certificate.name, certificate.role, 2e9)
    run.ledger.members.join(
        "back", host="here", pid=1, process_id="one", machine="one", version="0"
    )
    settings = GroupSettings(
        model=CONFIG.model, inner=CONFIG.inner, length=CONFIG.data.length, block_rows=1
    )
    backbone = Backbone(
        run.open_ledger,
        BackbonePlace(MODULAR, PATH, "back"),
        settings,
        own,
        listen="tls://127.0.0.1:0",
        save_seconds=0.0,
    )
    backbone.start()
    stop = threading.Event()
    volunteers = [start_session(backbone, credential, True, stop) for credential in credentials]
    try:
        leading = worker_of(
            run, "back", runner=Volunteers(run, backbone.run_phase), kinds=("train",)
        )
        deadline = time.monotonic() + 60  # until the backbone has volunteers, any worker trains it
        while not run.ledger.swarms.backbones(MODULAR, PATH, is_staffed=True):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        finish(run, worker_of(run, "plain"), leading)
        assert {newest.phase for newest in run.ledger.progress.newest_phases()} == {
            CONFIG.phases - 1
        }
    finally:
        stop.set()
        for thread in volunteers:
            thread.join(timeout=30)
        backbone.close(is_finished=True)
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


def test_credentials_are_made_and_revoked(dipaco, tiny, copy_of, tmp_path):
    run = copy_of(tiny)
    file = tmp_path / "ana.pass"
    made = dipaco("swarm", "token", "--run", run.folder, "--name", "ANA", "--out", file)
    assert (made.code, file.exists()) == (0, True), made.err
    assert "ANA may take part until" in made.out
    with reading(run.folder) as opened:
        assert [(one.name, one.is_revoked) for one in opened.ledger.swarms.credentials()] == [
            ("ANA", False)
        ]
    wrong = dipaco("swarm", "join", "somewhere", "--token", file)
    assert wrong.code == 2
    assert "is not an address of a swarm" in wrong.err
    unknown = dipaco("swarm", "revoke", "EVE", "--run", run.folder)
    assert unknown.code == 2
    assert "credentials for: ANA" in unknown.err
    assert dipaco("swarm", "revoke", "ANA", "--run", run.folder).code == 0
    with reading(run.folder) as opened:
        assert [one.is_revoked for one in opened.ledger.swarms.credentials()] == [True]
    assert dipaco("swarm", "revoke", "ANA", "--run", run.folder).code == 0  # once more


def test_the_name_of_a_backbone_is_neither_given_to_a_volunteer_nor_revoked(
    dipaco, tiny, copy_of, tmp_path
):
    run = copy_of(tiny)
    with reading(run.folder) as opened:
        opened.ledger.swarms.issue("serial", "backbone-0", "backbone", 2e9)
    revoked = dipaco("swarm", "revoke", "backbone-0", "--run", run.folder)
    assert (revoked.code, "There is no credential for backbone-0" in revoked.err) == (2, True)
    with reading(run.folder) as opened:
        assert [one.is_revoked for one in opened.ledger.swarms.credentials()] == [False]
    out = tmp_path / "false.pass"
    words = ("swarm", "token", "--run", run.folder, "--name", "backbone-0", "--out", out)
    made = dipaco(*words)
    assert (made.code, out.exists(), "a volunteer's name" in made.err) == (2, False, True)


@pytest.mark.parametrize(
    ("there", "listen"),
    [
        ("/ip4/127.0.0.1/tcp/1/p2p/Qm", "tcp://127.0.0.1:0"),
        ("tcp://127.0.0.1:1", "/ip4/127.0.0.1/tcp/0"),
        ("tls://127.0.0.1:1/0123456789abcdef0123456789abcdef", "tcp://127.0.0.1:0"),
    ],
)
def test_a_second_backbone_on_another_transport_is_refused(dipaco, tiny, copy_of, there, listen):
    run = copy_of(tiny)
    with reading(run.folder) as opened:
        opened.ledger.members.join(
            "first", host="there", pid=1, process_id="one", machine="one", version="0"
        )
        opened.ledger.swarms.put_backbone("first", MODULAR, 0, there)
    words = ("swarm", "start", run.config, "--run", run.folder, "--path", 0, "--listen", listen)
    refused = dipaco(*words)
    assert refused.code == 2
    assert f"is reached at {there}" in refused.err
    assert "`--name first` takes its place" in refused.err


def test_wrong_credentials_and_paths_are_refused_with_a_sentence(dipaco, tiny, tmp_path):
    several = dipaco("swarm", "start", tiny.config, "--run", tiny.folder)
    assert several.code == 2
    assert "--path 0 to 3" in several.err
    (tmp_path / "bad.pass").write_text("hello")
    bad = dipaco("swarm", "join", "tcp://127.0.0.1:1", "--token", tmp_path / "bad.pass")
    assert bad.code == 2
    assert "holds no credential" in bad.err
