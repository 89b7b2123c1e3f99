"""Snapshots that stay on the disk of the machine that made them, and what its loss costs: phases
that are trained again, to the same bits.
"""

import dataclasses

import pytest
import replay
from support.memory_bucket import Machines

from dipaco.config import MODULAR
from dipaco.errors import BadSetting
from dipaco.runs.status import status_of
from dipaco.store.retention import RetentionSettings
from tests.workers.conftest import CONFIG

PHASES = 5


@pytest.fixture
def machines(begin, tmp_path):
    def of(**outer):
        keep = RetentionSettings(snapshots=1, send_snapshots_every=3)
        config = dataclasses.replace(
            CONFIG,
            phases=PHASES,
            retention=keep,
            outer=dataclasses.replace(CONFIG.outer, **outer),
            evaluation=dataclasses.replace(CONFIG.evaluation, every_phases=PHASES),
        )
        return Machines(begin(config), tmp_path / "machines")

    return of


def sent(on, path=0):
    """The phases whose snapshots of a path are in the bucket."""
    names = [name for name in on.content if name.startswith(f"snapshots/modular/{path:04d}/")]
    return sorted({int(name.split("/")[3].split("-")[0]) for name in names})


def test_every_third_snapshot_and_the_last_are_sent_and_the_one_before_stays_for_a_while(machines):
    on = machines()
    for phase, expected in enumerate([[], [], [2], [2], [2, 4]], start=1):
        on.work_until(phase)
        assert sent(on) == expected, phase
    of_path = on.of_path[0].run
    here = of_path.objects.root / "snapshots/modular/0000"
    assert sorted(int(file.name.split("-")[0]) for file in here.iterdir()) == [2, 4]
    assert of_path.ledger.redos.refusals() == []


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_path_whose_machine_is_lost_trains_its_phases_since_the_last_sent_one_again(
    machines, codec
):
    on = machines(codec=codec)
    on.work_until(2)
    assert status_of(on.of_path[0].run, with_sizes=False)["unsent_snapshots"] == {
        str(path): 2 for path in range(4)
    }
    on.of_path[0] = on.new("another")
    on.work_until(PHASES)
    again = [refusal.task for refusal in on.run.ledger.redos.refusals()]
    assert again == ["train modular path 0 phase 0", "train modular path 0 phase 1"]
    assert replay.differences(on.executor.run) == []
    assert len(on.run.ledger.facts.trained(MODULAR, 1)) == 4


def test_modules_must_be_kept_as_long_as_phases_may_be_trained_again():
    with pytest.raises(BadSetting, match="phases that are trained again"):
        RetentionSettings(modules=3, send_snapshots_every=3)
    with pytest.raises(BadSetting, match="1 or more"):
        RetentionSettings(send_snapshots_every=0)
