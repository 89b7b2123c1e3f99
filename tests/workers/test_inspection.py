"""What `dipaco inspect` shows of a run with an alternation."""

import dataclasses

import numpy as np

from dipaco.config import MODULAR
from dipaco.evaluation.inspection_plot import draw_inspection
from dipaco.runs.inspection import inspection_of
from dipaco.store.tensors import load_tree
from tests.workers.conftest import CONFIG, work_until


def test_inspect_shows_what_calibration_and_the_new_router_of_an_alternation_changed(
    begin, tmp_path
):
    routing = dataclasses.replace(CONFIG.routing, alternations=(1,), target_share=(0.25,) * 4)
    run = begin(dataclasses.replace(CONFIG, routing=routing))
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
        load_tree(run.objects, run.stage("route", phase).artifacts["valid"])["paths"]
        for phase in (0, 1)
    )
    assert second["same_path_validation"] == float(np.mean(old == new)) < 1
    assert abs(second["same_path_training"] + second["moved"] - 1) < 1e-9
    assert [at["documents"] for at in inspection["paths"]] == second["documents"]

    for module in run.config.topology.modules:
        steps = inspection["modules"][str(module)]["steps"]
        assert [step["phase"] for step in steps] == [1, 2, 3]
        assert all(-1 <= step["cosine"] <= 1 for step in steps)
        assert set(steps[0]["norms"]) == {
            str(path) for path in run.plan.arm(MODULAR).topology.paths_through(module)
        }
    draw_inspection(inspection, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_modules_of_one_path_have_no_cosine_and_are_drawn(tmp_path):
    steps = [{"phase": 1, "norm": 2.0, "cosine": None}, {"phase": 2, "norm": 1.0, "cosine": None}]
    routings = [{"phase": 0, "documents": [3, 4]}]
    modules = {f"all/{number:04d}": {"steps": steps} for number in range(2)}
    for number, drawn in enumerate((modules, {})):
        file = tmp_path / f"{number}.png"
        draw_inspection({"routings": routings, "modules": drawn}, file)
        assert file.read_bytes().startswith(b"\x89PNG")
