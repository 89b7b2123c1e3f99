"""`dipaco train` on a finished run, and from the modules of another run or a checkpoint."""

import dataclasses
import socket
import sys
from pathlib import Path

import pytest
import tokenizers

from dipaco import trees
from dipaco.cli import train
from dipaco.config import MODULAR
from dipaco.launch import devices
from dipaco.model.config import MeshConfig
from dipaco.model.errors import BadMesh
from dipaco.runs.errors import NoSuchRun
from dipaco.runs.opening import open_run, reading
from dipaco.store.address import Address
from dipaco.topology import ModuleId
from dipaco.workers import replay
from dipaco.workers.errors import CannotStartFrom
from dipaco.workers.origin import from_run
from tests.support.tiny_run import CONFIG, TOY, Fault, facts, report

FIRST = ("early/0000", "late/0000")


def first_modules(folder: Path) -> dict[str, str]:
    with reading(folder) as run:
        return {
            str(module): trees.digest(run.parameters(MODULAR, module, 0))
            for module in run.config.topology.modules
        }


def test_a_removed_report_is_written_again(here, tiny, copy_of):
    run = copy_of(tiny)
    before = {file.name: file.read_bytes() for file in run.folder.glob("report.*")}
    assert len(before) == 3
    for name in before:
        (run.folder / name).unlink()
    ended = here("train", run.config, "--run", run.folder)
    assert (ended.code, f"Written: {run.folder}/report.md" in ended.out) == (0, True)
    for name in ("report.json", "report.md"):
        assert (run.folder / name).read_bytes() == before[name]
    assert (run.folder / "report.png").exists()


def test_training_a_finished_run_changes_nothing_and_prints_its_table(here, tiny):
    def everything():
        files = sorted(file for file in tiny.folder.rglob("*") if file.is_file())
        return {file: file.read_bytes() for file in files if "ledger" not in file.name}

    before, known = everything(), facts(tiny.folder)
    ended = here("train", tiny.config, "--run", tiny.folder)
    assert ended.code == 0, ended.err
    assert everything() == before
    assert facts(tiny.folder) == known
    for name in ("dense", "dense_equal_tokens", "modular", "modular_best_path"):
        assert f"\n{name} " in ended.out


def test_too_few_devices_are_said_before_a_run_begins(here, config_file, tmp_path):
    """Its mesh would be that of the run for good, once its text is prepared."""
    for workers in (1, 2):
        words = ("train", config_file, "--run", tmp_path / "run", "--workers", workers)
        refused = here(*words, "--set", "mesh.tensor=16")
        says = "CannotTrainHere: A mesh of "
        assert (refused.code, says in refused.err) == (4, True), (workers, refused.err)
    with pytest.raises(NoSuchRun):
        open_run(Address(tmp_path / "run"))


CANNOT_BE_USED = {
    "train --metrics-port 99999": "`--metrics-port` is 99999. Expected 0 to 65535",
    "train --metrics-port 0": "[metrics]'`.",
    "train --wandb": "[wandb]'`.",
    "train --trackio --workers 2": "[trackio]'`.",
    "launch --tensorboard --workers 1": "[tensorboard]'`.",
}


def test_an_option_that_cannot_be_used_is_said_before_a_run_begins(
    here, config_file, tmp_path, monkeypatch
):
    """Else a run of the wrong line is there, which may refuse the right one."""
    for package in ("prometheus_client", "tensorboardX", "trackio", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    for words, says in CANNOT_BE_USED.items():
        verb, *options = words.split()
        refused = here(verb, config_file, "--run", tmp_path / "run", *options)
        assert (refused.code in (2, 4), says in refused.err) == (True, True), (words, refused.err)
    assert not (tmp_path / "run").exists()


def test_a_taken_port_of_metrics_is_said_before_a_run_begins(here, config_file, tmp_path):
    pytest.importorskip("prometheus_client", reason="metrics need the `metrics` extra")
    run = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for workers in (1, 2):
            words = ("--workers", workers, "--metrics-port", port)
            refused = here("train", config_file, "--run", run, *words)
            assert refused.code == 2
            assert f"CannotListen: Cannot listen on 127.0.0.1:{port}" in refused.err
    assert not run.exists()


def test_a_process_that_only_starts_workers_does_not_judge_gpus_that_it_cannot_see(monkeypatch):
    """WSL and ROCm have no /dev/nvidia*, and a JAX that is not for the CPU only."""
    monkeypatch.setattr(devices, "visible_devices", lambda: devices.VisibleDevices("cpu", ()))
    config = dataclasses.replace(TOY, mesh=MeshConfig(tensor=16))
    with pytest.raises(BadMesh):
        train._check_devices(2, config)
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(devices, "is_for_cpu_only", lambda: True)
    with pytest.raises(BadMesh):
        train._check_devices(2, config)
    monkeypatch.setattr(devices, "is_for_cpu_only", lambda: False)
    train._check_devices(2, config)


@pytest.mark.slow
def test_a_run_with_another_config_starts_from_the_modules_of_another(
    dipaco, tiny, opened, tmp_path
):
    settings = ["inner.learning_rate=1e-3", "inner.steps=2", "outer.momentum=0.5", "baselines=[]"]
    settings.append("outer.vocabulary_rows=holders")  # and its counts are of its own shards
    settings = [word for setting in settings for word in ("--set", setting)]
    command = ["train", tiny.config, "--run", tmp_path / "new", "--from", f"{tiny.folder}@1"]
    ended = dipaco(*command, *settings, fault=Fault("after claim", "train"))
    assert ended.fired, ended.err
    start = "tokenizer: that of the model it starts from; starts with --from"
    assert f"{start} {tiny.folder.resolve()}@1" in ended.err
    assert first_modules(tmp_path / "new") == {
        str(module): trees.digest(opened.parameters(MODULAR, module, 1))
        for module in opened.config.topology.modules
    }
    with reading(tmp_path / "new") as new:
        assert trees.digest(new.base_parts()) == trees.digest(opened.base_parts())
        assert new.stage("route").artifacts["router"] == opened.stage("route").artifacts["router"]
        assert new.corpus.manifest.tokenizer_digest == opened.corpus.manifest.tokenizer_digest
        assert new.ledger.progress.training_totals("base").tokens == 0
    ended = dipaco(*command, *settings)
    assert ended.code == 0, ended.err
    with reading(tmp_path / "new") as new:
        assert replay.differences(new) == []
    assert "base phase" not in ended.err + ended.out  # none is trained here
    assert "nan" not in (tmp_path / "new" / "events.jsonl").read_text().lower()
    for more in ((), ("--json",)):
        shown = dipaco("status", "--run", tmp_path / "new", *more)
        assert ("\nbase" in shown.out) is False, shown.out


def test_a_dense_run_starts_from_one_path_of_another(dipaco, tiny, opened, tmp_path):
    config = tmp_path / "dense.py"
    dense = CONFIG.replace('"block_00"), experts=2', '"block_00")')
    config.write_text(dense.replace('"head"), experts=2', '"head")'))
    command = ["train", config, "--run", tmp_path / "new", "--from", f"{tiny.folder}@2"]
    ended = dipaco(*command, fault=Fault("after claim", "train"))
    assert ended.fired, ended.err
    newest = {m: trees.digest(opened.parameters(MODULAR, ModuleId.parse(m), 2)) for m in FIRST}
    assert first_modules(tmp_path / "new") == newest


def without_notes(folder: Path) -> dict:
    return report(folder) | {"notes": []}


def notes_of_start(run) -> list[str]:
    """What the run says of its start, without what it says of its text."""
    notes = run.stage("prepare").summary["notes"]
    return [note for note in notes if note not in run.corpus.manifest.notes]


def test_a_run_from_the_base_model_of_another_is_that_run_again(dipaco, tiny, tmp_path):
    new = tmp_path / "new"
    command = ["train", tiny.config, "--run", new, "--from", f"{tiny.folder}@base"]
    ended = dipaco(*command)
    assert ended.code == 0, ended.err
    of_modules = {row for row in facts(tiny.folder)["modules"] if row[0] != "base"}
    assert of_modules <= facts(new)["modules"]
    assert without_notes(new) == without_notes(tiny.folder)  # the base model's costs included
    with reading(new) as run:
        assert run.ledger.progress.training_totals("base").tokens == 0
        (note,) = notes_of_start(run)
    assert note.startswith(f"From {tiny.folder}@base: text, tokenizer, base model and router.")
    tokens = "tokens_00000.arrayrecord"
    assert (new / "corpus" / tokens).samefile(tiny.folder / "corpus" / tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "settings", "is_carried"),
    [
        (CONFIG.replace("experts=2", "experts=PER_PATH", 1), [], False),
        (CONFIG, ["seed=5"], True),
        (CONFIG, ["routing.kind=random"], False),
        (CONFIG.replace("experts=2", "experts=3"), [], False),
    ],
    ids=["2 paths, one level private", "another seed", "another router", "9 paths"],
)
def test_any_topology_starts_from_the_base_model_of_another_run(
    dipaco, tiny, opened, tmp_path, levels, settings, is_carried
):
    config, new = tmp_path / "config.py", tmp_path / "new"
    config.write_text(levels.replace("import Level,", "import PER_PATH, Level,"))
    given = [word for setting in settings for word in ("--set", setting)]
    command = ["train", config, "--run", new, "--from", f"{tiny.folder}@base", *given]
    ended = dipaco(*command, fault=Fault("after claim", "train"))
    assert ended.fired, ended.err
    base, router = opened.base_parts(), opened.stage("route").artifacts["router"]
    with reading(new) as run:
        for module in run.config.topology.modules:
            parts = {part: base[part] for part in run.config.topology.parts_of(module)}
            assert trees.digest(run.parameters(MODULAR, module, 0)) == trees.digest(parts)
        assert run.corpus.digest == opened.corpus.digest
        assert (run.stage("route").artifacts["router"] == router) == is_carried
        (note,) = notes_of_start(run)
        assert ("the router is fitted here" in note) != is_carried
        assert len(run.stage("route").summary["documents"]) == run.config.num_paths


@pytest.mark.slow
def test_all_modules_start_from_an_exported_checkpoint(dipaco, tiny, opened, tmp_path):
    export = ("export", "--run", tiny.folder, "--path", 1, "--out", tmp_path / "theirs")
    assert dipaco(*export).code == 0
    command = ["train", tiny.config, "--run", tmp_path / "new", "--init-from", tmp_path / "theirs"]
    ended = dipaco(*command, "--set", "base.steps=0", fault=Fault("after claim", "train"))
    assert ended.fired, ended.err
    parts = opened.path_of(opened.ledger.facts.release(MODULAR, 2), 1)
    early = trees.digest({part: parts[part] for part in ("embed", "block_00")})
    late = trees.digest({part: parts[part] for part in ("block_01", "final_norm", "head")})
    first = first_modules(tmp_path / "new")
    assert first == {m: early if m.startswith("early") else late for m in first}
    with reading(tmp_path / "new") as new:
        assert new.corpus.edges.tokens == opened.corpus.edges.tokens
        assert notes_of_start(new) == []


@pytest.mark.slow
def test_the_start_says_whether_texts_had_an_end_there(dipaco, tiny, opened, tmp_path):
    """Without an end, from one with; then with one, from that."""
    without, again = tmp_path / "without", tmp_path / "again"
    prepared = Fault("after claim", "route")
    command = ["train", tiny.config, "--run", without, "--from", f"{tiny.folder}@1"]
    for setting in ("data.end_of_text=false", "inner.steps=2", "baselines=[]"):
        command += ["--set", setting]
    ended = dipaco(*command, fault=prepared)
    assert ended.fired, ended.err
    with reading(without) as new:
        assert new.corpus.edges.tokens == (None, None)
        (note,) = notes_of_start(new)
        assert note.startswith(f"Texts of {tiny.folder}@1 ended with `<|endoftext|>`. Here they")
        assert note in ended.err
    assert dipaco("train", tiny.config, "--run", without).code == 2  # other settings
    assert dipaco(*command).code == 0

    ended = dipaco(
        *["train", tiny.config, "--run", again, "--from", f"{without}@1"], fault=prepared
    )
    assert ended.fired, ended.err
    with reading(again) as new:
        assert new.corpus.edges.tokens == opened.corpus.edges.tokens
        (note,) = notes_of_start(new)
        assert note.startswith(f"The model of {without}@1 never saw the end of a text.")
    generated = dipaco(
        *["generate", "--run", without, "--prompt", "x", "--max-tokens", 60, "--temperature", 2]
    )
    assert "60 tokens in" in generated.err
    assert "the model knows no end of a text" in generated.err
    assert (
        "EmptyPrompt: The prompt is empty"
        in dipaco("generate", "--run", without, "--prompt", "").err
    )


def test_a_tokenizer_with_other_tokens_than_the_origins_is_refused(tiny, opened, tmp_path):
    there = opened.corpus.tokenizer_file
    library = tokenizers.Tokenizer.from_file(str(there))
    library.add_tokens(["another token"])
    library.save(str(tmp_path / "other.json"))

    def start(tokenizer):
        data = dataclasses.replace(opened.config.data, tokenizer=str(tokenizer))
        config = dataclasses.replace(opened.config, data=data)
        return from_run(config, tmp_path / "new", f"{tiny.folder}@1")

    with pytest.raises(CannotStartFrom, match="has other tokens than the tokenizer there"):
        start(tmp_path / "other.json")
    assert start(there)["tokenizer"]


BAD_STARTS = [
    ("{tiny}", (), "expected DIR@PHASE or DIR@base"),
    ("{tiny}@last", (), "expected DIR@PHASE or DIR@base"),
    ("{tiny}@²", (), "expected DIR@PHASE or DIR@base"),
    ("@2", (), "Cannot start from @2: expected DIR@PHASE or DIR@base"),
    ("s3://x y/z@2", (), "Cannot start from s3://x y/z: `x y` is not a valid name of a bucket"),
    ("{tiny}@9", (), "that run has 2 phases"),
    ("{tiny}@99999999999999999999", (), "that run has 2 phases"),
    ("{tiny}-nowhere@1", (), "holds no run"),
    ("{tiny}@1", ("model.d_ff=64",), "`model.d_ff` is 48 there and 64 here"),
    ("{tiny}@base", ("model.d_ff=64",), "`model.d_ff` is 48 there and 64 here"),
    ("{tiny}@base", ("model.vocab_size=290",), "`model.vocab_size` is 300 there and 290 here"),
    (
        "{tiny}@base",
        ("data.held_fraction=0.2",),
        "`data.held_fraction` is 0.05 there and 0.2 here. It comes with its text",
    ),
]


def test_a_bad_start_is_refused(here, tiny, tmp_path):
    train = ("train", tiny.config, "--run")
    for source, settings, error in BAD_STARTS:
        start = ("--from", source.format(tiny=tiny.folder))
        sets = ("--set", *settings) if settings else ()
        ended = here(*train, tmp_path / "new", *start, *sets)
        assert (ended.code, error in ended.err) == (2, True), (source, ended.err)
    assert not (tmp_path / "new").exists()
    for start in ("runs/x", "@2", "runs/x@last"):  # a run that has begun looks at it as well
        ended = here(*train, tiny.folder, "--from", start)
        says = f"CannotStartFrom: Cannot start from {start}: expected DIR@PHASE"
        assert (ended.code, says in ended.err) == (2, True), ended.err


def test_a_run_that_is_only_begun_is_done_by_workers_to_the_same_bits(here, dipaco, tiny, tmp_path):
    run, words = tmp_path / "run", ("begin", tiny.config, "--run", tmp_path / "run")
    for more in (("--set", "seed=1"), ()):  # the second corrects the first: nothing was recorded
        ended = here(*words, *more)
        assert (ended.code, "4 paths, 4 modules" in ended.out) == (0, True), ended.err
        assert ended.out.endswith(f"any number of machines: dipaco worker --run {run}\n")
    assert not any(any(rows) for table, rows in facts(run).items() if table != "tasks")
    again = here(*words)
    assert (again.code, "This run has begun before." in again.out) == (0, True), again.err
    ended = dipaco("worker", "--run", run)
    assert ended.code == 0, ended.err
    assert facts(run) == facts(tiny.folder)


def test_a_host_of_several_that_comes_back_when_the_run_is_finished_waits_for_no_other(here, tiny):
    """Where its worker's other hosts have ended for good, as completed pods, it would wait and fail
    for ever.
    """
    words = ("--hosts", 2, "--host-index", 1, "--coordinator", "127.0.0.1:1")
    ended = here("worker", "--run", tiny.folder, *words)
    assert (ended.code, ended.err) == (0, "")
