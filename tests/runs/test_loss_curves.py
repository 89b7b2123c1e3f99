"""A report holds every training loss, or means where they are too many for one file."""

import itertools
import statistics

import pytest
from support.made_up_run import make_run

from dipaco.config import MODULAR
from dipaco.runs.opening import reading
from dipaco.runs.reading import curves
from tests.support.tiny_run import TOY


@pytest.mark.parametrize("stretch", [1, 2, 3, 7, 100])
def test_means_over_stretches_weigh_up_to_the_mean_of_all(stretch):
    losses = [float(n * n) for n in range(20)]
    curve = curves.thinned(losses, 10, stretch)
    steps = [10, *(step for step, _ in curve)]
    assert steps[-1] == 30
    assert max(b - a for a, b in itertools.pairwise(steps)) == min(stretch, 20)
    total = sum((b - a) * v for a, b, (_, v) in zip(steps, steps[1:], curve, strict=False))
    assert total == pytest.approx(sum(losses))


def test_a_run_with_too_many_losses_has_so_many_of_them_and_says_so(tmp_path, monkeypatch):
    make_run(tmp_path / "run", phases=9, config=TOY)  # two losses a phase, of four paths
    with reading(tmp_path / "run") as run:
        arm = run.plan.arm(MODULAR)
        whole = curves.loss_curves(run, arm)
        assert {len(curve) for curve in whole.values()} == {18}
        assert curves.notes_on_losses(run) == []
        monkeypatch.setattr(curves, "MOST_LOSSES", arm.path_steps // 6)
        some = curves.loss_curves(run, arm)
        assert {len(curve) for curve in some.values()} == {3}
        assert some["2"][0] == (
            whole["2"][5][0],
            pytest.approx(statistics.fmean(loss for _, loss in whole["2"][:6])),
        )
        (note,) = [n for n in curves.notes_on_losses(run) if "modular" in n]
        assert "means over 6 steps" in note
