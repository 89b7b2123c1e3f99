"""`dipaco plan`: what a run will need, before anything starts."""

import re

import pytest

from dipaco.runs.forecast import compiled
from dipaco.shipped import shipped_files
from tests.cli.conftest import as_json


def test_it_says_memory_bytes_time_and_what_else_would_bring(here, config_file):
    command = ("plan", config_file, "--workers", 5, "--mbit", 20, "--step-seconds", 2)
    said = here(*command).out
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert "1 of them would wait: a phase trains 4 paths" in lines
    for part in ("Memory of a worker", "Bytes of a machine in a phase", "Time"):
        assert any(line.startswith(part) for line in lines), said
    assert any(line.startswith("* none") for line in lines), said
    assert any(line.split()[:2] == ["lock-step", "32"] for line in lines), said
    found = as_json(here(*command, "--json"))
    assert f"{found['computing']:.1%}" in said
    assert (found["workers"], found["machines_at_work"]) == (5, 4)


def test_it_plans_for_the_settings_as_they_are_changed(here, config_file):
    command = ("plan", config_file, "--step-seconds", 2, "--json", "--set")
    plain = as_json(here(*command, "outer.codec=none"))
    changed = as_json(here(*command, "outer.codec=int8", "inner.steps=50"))
    assert (changed["codec"], changed["steps"]) == ("int8", 50)
    assert (
        changed["bytes_up"] < plain["bytes_up"] or changed["memory_bytes"] > plain["memory_bytes"]
    )
    assert changed["computing"] > plain["computing"]


def test_the_printed_terms_add_up_to_the_phase(here, config_file):
    command = ("plan", config_file, "--mbit", 1, "--step-seconds", 2, "--no-outer-steps")
    found = as_json(here(*command, "--json", "--set", "outer.delay=2"))
    assert found["hidden_seconds"] > 0
    terms = found["computing_seconds"] + found["transfer_seconds"] - found["hidden_seconds"]
    assert found["phase_seconds"] == pytest.approx(terms)
    bytes_of_phase = found["bytes_down"] + found["bytes_up"]
    assert found["transfer_seconds"] == pytest.approx(8 * bytes_of_phase / 1e6, rel=1e-3)


@pytest.mark.contract
def test_it_measures_a_step(here, config_file):
    found = as_json(here("plan", config_file, "--json"))
    assert found["step_seconds_are"] == "measured on this machine"
    assert found["step_seconds"] > 0


def test_of_a_model_that_is_too_large_here_it_says_all_but_hours(here):
    said = here("plan", "paper_16x16").out
    assert "No step was tried here: a step of " in said
    assert "With `--step-seconds S`" in said
    assert max(map(len, said.splitlines())) <= 80


def test_cells_are_printed_as_a_file_for_a_router(here, tmp_path):
    said = here("plan", "tiny_16x16", "--serve", "64").out
    assert said.startswith("# tiny_16x16: 256 paths in 64 cells.\n")
    assert '"0-1,16-17": {url: "http://cell-0:8000"}  # 4 paths, 8 of 288 modules, ' in said
    (tmp_path / "cells.yaml").write_text(said)
    upstreams = pytest.importorskip("dipaco.serving.upstreams", reason="no extra `serve` here")
    targets = upstreams.read_targets(tmp_path / "cells.yaml", "tiny_16x16", 256)
    assert [target.model for target in targets[17]] == ["tiny_16x16/path_0017"]
    as_file = as_json(here("plan", "tiny_16x16", "--serve", "64", "--json"))
    assert as_file["238-239,254-255"] == {"url": "http://cell-63:8000"}


def test_a_bad_number_is_refused_with_a_sentence(here, config_file):
    for words, says in {
        "--mbit 0": "`--mbit` is 0.0.",
        "--mbit nan": "`--mbit` is nan.",
        "--workers 0": "`--workers` is 0.",
        "--serve 5": "`--serve` is 5.",
        "--step-seconds -1": "`--step-seconds` is -1.0.",
        "--store-mbit 0": "`--store-mbit` is 0.0.",
        "--set outer.codex=int8": "Did you mean `outer.codec`",
    }.items():
        done = here("plan", config_file, *words.split())
        assert (done.code, says in done.err) == (2, True), (words, done.err)


def test_for_a_gpu_the_batch_that_fits_is_told_and_another_is_refused_with_what_would(here):
    command = ("plan", "paper_2x4", "--device", "h100", "--json", "--set", "mesh.data=1")
    pieces = "inner.accumulation_steps"
    refused = here(*command, f"{pieces}=1", "inner.rematerialise=false")
    assert refused.code == 2
    fits = int(re.search(rf"It fits with `--set {pieces}=(\d+)`", refused.err)[1])
    again = re.search(rf"rematerialise=true {pieces}=(\d+)`", refused.err)[1]
    assert f"one H100 needs `{pieces}={again}`" in shipped_files()["paper_2x4"].read_text()
    found = as_json(here(*command, f"{pieces}={fits}", "inner.rematerialise=false"))
    assert found["memory_of_step"] <= found["memory"] == 80e9
    assert 512 / fits <= found["largest_batch"]["plain"] < found["largest_batch"]["rematerialised"]
    assert found["step_seconds_are"] == "40% of the peak of h100"
    assert found["step_seconds"] == pytest.approx(found["step_flops"] / (0.4 * 989e12))


def test_a_device_that_nobody_knows_and_a_compiler_that_is_absent_are_sentences(here, monkeypatch):
    for name in ("v9:2x2", "v5e:2x2x2", "v5e:32x32", "v4:2x2"):
        unknown = here("plan", "paper_2x4", "--device", name, "--step-seconds", 1)
        assert (unknown.code, "Known are: v4:2x2x1, v5e:2x2," in unknown.err) == (2, True)
    monkeypatch.setattr(compiled, "_version", lambda package: "")
    absent = here("plan", "paper_2x4", "--device", "v5e:2x4", "--step-seconds", 1)
    assert (absent.code, "[tpu-compile]'`" in absent.err) == (4, True)
    assert "Memory of a worker" in absent.out  # what needs no compiler


@pytest.mark.slow
@pytest.mark.timeout(1200)  # minutes of compiling, on machines that may be busy
def test_all_programs_of_a_worker_compile_for_a_slice_of_tpus(here, config_file):
    """With heads in a kernel, and rows divided among the chips."""
    pytest.importorskip("libtpu")
    command = ("plan", config_file, "--device", "v5e:2x2", "--json", "--set")
    settings = ("model.compute_dtype=bfloat16", "mesh.data=2", "mesh.tensor=2")
    programs = as_json(here(*command, *settings))["programs"]
    kinds = {name.split()[0] for name in programs}
    assert kinds == {"training", "scores", "features", "prefill", "a"}
    assert all(0 < needs["use"] <= 1 and needs["moved"] for needs in programs.values())


def test_a_run_is_planned_on_a_machine_without_its_devices(dipaco, config_file):
    done = dipaco("plan", config_file, "--set", "mesh.data=2")
    assert done.code == 0, done.err
    assert "this machine cannot train it: A mesh of data=2" in " ".join(done.out.split())
