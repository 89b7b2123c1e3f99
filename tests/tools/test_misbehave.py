"""A worker that breaks rules on order, as storms have them: an order is carried out."""

from types import SimpleNamespace
from unittest import mock

import misbehave
import pytest

import dipaco
from dipaco.control.claims.queue import Queue
from dipaco.control.facts.commit import Commit
from dipaco.control.planning.tasks import Claim, Contribution, Task
from dipaco.errors import ClaimLost, RunOfOtherVersion
from dipaco.receipt import Receipt
from dipaco.runs import version
from dipaco.topology import ModuleId
from dipaco.workers import runners
from dipaco.workers.tasks import train

CLAIM = Claim(Task("train", "modular", "1", 0), task_id=1, attempt=1, worker="w")
TRUE = Contribution(
    arm="modular",
    path=1,
    module=ModuleId("late", 0),
    phase=0,
    base_digest="digest",
    message=Receipt("message", "digest", 8),
)


def test_a_corruption_whose_claim_is_lost_is_made_again_with_the_next(monkeypatch, tmp_path):
    """Others have the task by then, and record a true contribution."""
    lost = iter([True, False, False])

    def record(*_, assigns):
        assert assigns
        if next(lost):
            raise ClaimLost(task=CLAIM.task)
        return []

    monkeypatch.setattr(Commit, "finish", record)
    monkeypatch.setattr(train, "end_phase", lambda run, begun: [TRUE])
    monkeypatch.setattr(misbehave, "corrupted", lambda run, fact, wanted: wanted)
    misbehave.corrupt_on_order(misbehave.OrderFile(tmp_path / "w"))
    order, done = tmp_path / "w.order", tmp_path / "w.done"
    order.write_text("NaN")
    commit, begun = Commit.__new__(Commit), SimpleNamespace(claim=CLAIM)
    sent = []

    def work():
        sent.append(train.end_phase(None, begun))
        commit.finish(None, CLAIM, sent[-1], assigns=True)

    with pytest.raises(ClaimLost):
        work()
    assert order.read_text() == "NaN"
    assert not done.exists()
    work()
    work()
    assert sent == [["NaN"], ["NaN"], [TRUE]]
    assert done.read_text() == "NaN\n"
    assert not order.exists()


def test_a_worker_of_a_certain_speed_records_what_it_is_told_to(monkeypatch, tmp_path):
    record = mock.Mock(return_value=[])
    monkeypatch.setattr(Commit, "finish", record)
    monkeypatch.setattr(runners, "run_phase", runners.run_phase)
    for name in ("claim", "claim_backup"):
        monkeypatch.setattr(Queue, name, getattr(Queue, name))
    misbehave.Pace(0.0, tmp_path / "hurry").install()
    Commit.finish(None, None, CLAIM, [TRUE], assigns=True)
    record.assert_called_once_with(None, None, CLAIM, [TRUE], assigns=True)


def test_another_program_is_refused_though_a_run_is_of_the_same_sources(monkeypatch):
    found = version.program_version()
    version.check_program("run", found)
    monkeypatch.setattr(version, "sources_digest", version.sources_digest)
    monkeypatch.setattr(dipaco, "__version__", dipaco.__version__)
    misbehave.be_another_program("0.0.0")
    for check in (version.check_program, version.check_version):
        with pytest.raises(RunOfOtherVersion):
            check("run", found)
