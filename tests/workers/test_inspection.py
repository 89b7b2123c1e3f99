"""What `dipaco inspect` shows of a run with an alternation."""

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.evaluation.plots import draw_inspection
from dipaco.runs.reading.inspection import inspection_of
from dipaco.store.tensors import load_tree
from tests.workers.conftest import CONFIG, changed, work_until


def test_inspect_shows_what_calibration_and_the_new_router_of_an_alternation_changed(
    begin, tmp_path
):
    routing = {"alternations": (1,), "target_share": (0.25,) * 4}
    run = begin(changed(CONFIG, routing=routing))
    work_until(run, CONFIG.phases)
    inspection = inspection_of(run)
    first, second = inspection["routings"]
    assert (first["phase"], second["phase"]) == (0, 1)
    assert first["router"] != second["router"]

    documents = len(run.corpus.documents("router"))
    for of_router in ("labels", "before_calibration", "after_calibration"):
        assert sum(second[of_router]) == documents
    assert max(second["after_calibration"]) - min(second["after_calibration"]) <= 3
    old, new = (
        load_tree(run.objects, run.stage("route", phase).artifacts["held"])["paths"]
        for phase in (0, 1)
    )
    assert second["same_path_held"] == float(np.mean(old == new)) < 1
    assert abs(second["same_path_training"] + second["moved"] - 1) < 1e-9
    assert [at["documents"] for at in inspection["paths"]] == second["documents"]
    # The router was given a share for each path: nothing else bounds their documents.
    mean = sum(second["documents"]) / 4
    assert inspection["bounds"] == {"mean": mean, "capacity": None, "floor": None}

    for module in run.config.topology.modules:
        steps = inspection["modules"][str(module)]["steps"]
        assert [step["phase"] for step in steps] == [1, 2, 3]
        assert all(-1 <= step["cosine"] <= 1 for step in steps)
        assert set(steps[0]["norms"]) == {
            str(path) for path in run.plan.arm(MODULAR).topology.paths_through(module)
        }
    draw_inspection(inspection, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("capacity", "floor"), [(1.5, 0.25), (None, 0.0)])
def test_bounds_are_those_that_the_router_kept(begin, capacity, floor):
    run = begin(changed(CONFIG, routing={"capacity": capacity, "floor": floor}))
    work_until(run, 1)
    inspection = inspection_of(run)
    bounds, sizes = inspection["bounds"], [at["documents"] for at in inspection["paths"]]
    assert bounds["mean"] == sum(sizes) / len(sizes)
    assert bounds["capacity"] == (capacity and pytest.approx(capacity * bounds["mean"]))
    assert bounds["floor"] == (pytest.approx(floor * bounds["mean"]) if floor else None)
