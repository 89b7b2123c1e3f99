"""Each verb on the finished tiny run: what it prints is what the model says."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.data.toy import toy_documents
from dipaco.model.lm import forward
from dipaco.runs.opening import reading
from dipaco.store.tensors import load_tree
from dipaco.topology import ModuleId
from tests.support.tiny_run import CONFIG, Fault, facts

PROMPT = next(toy_documents(documents=1, words=4, seed=7)).text.strip()


@pytest.fixture(scope="module")
def opened(tiny):
    with reading(tiny.folder) as run:
        yield run


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> Path:
    """Twelve documents the run has not seen, and one that is too short to evaluate."""
    file = tmp_path_factory.mktemp("documents") / "new [1].jsonl"  # a name that is also a pattern
    texts = [document.text for document in toy_documents(documents=12, words=30, seed=7)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, "short"]))
    return file


def as_json(ended) -> dict:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


# --- status -----------------------------------------------------------------------------------


def test_status_names_every_module_with_phase_and_digest(dipaco, tiny, opened):
    status = as_json(dipaco("status", "--run", tiny.folder, "--json"))
    assert status["finished"] is True
    assert set(status["stages"]) == {"prepare", "route", "report"}
    assert set(status["modules"]) == {"early/0000", "early/0001", "late/0000", "late/0001"}
    for name, module in status["modules"].items():
        receipt = opened.ledger.facts.module(MODULAR, ModuleId.parse(name), 2).parameters
        assert module == {"phase": 2, "digest": receipt.digest}
    for path in ("0", "1", "2", "3"):
        at = status["paths"][path]
        assert (at["phase"], at["step"], at["tokens"]) == (2, 6, 6 * 4 * 64)
        assert 0 < at["loss"] < np.log(300) + 1
    assert status["unfinished"] == []
    shown = dipaco("status", "--run", tiny.folder)
    assert status["modules"]["late/0001"]["digest"] in shown.out


def test_status_of_a_run_on_its_way_says_what_is_to_do(dipaco, half):
    status = as_json(dipaco("status", "--run", half.folder, "--json"))
    assert status["finished"] is False
    assert {task["state"] for task in status["unfinished"]} == {"ready", "claimed"}
    assert status["modules"]["early/0000"]["phase"] == 1


# --- inspect ----------------------------------------------------------------------------------


def test_inspect_tells_what_paths_were_given_and_how_modules_were_moved(
    dipaco, tiny, opened, tmp_path
):
    picture = tmp_path / "inspect.png"
    inspection = as_json(dipaco("inspect", "--run", tiny.folder, "--json", "--picture", picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    shards = opened.stage("route").summary
    assert [at["documents"] for at in inspection["paths"]] == shards["documents"]
    for at in inspection["paths"]:
        assert sum(at["domains"].values()) == at["documents"]
        assert len(at["modules"]) == 2
    assert sum(at["share"] for at in inspection["paths"]) == pytest.approx(1)
    (routing,) = inspection["routings"]
    assert (routing["phase"], routing["documents"]) == (0, shards["documents"])

    # Of the last phase, the contributions are still there.
    arrivals = {
        module: opened.ledger.facts.contributions(MODULAR, module, 1)
        for module in opened.config.topology.modules
    }
    for module, sent in arrivals.items():
        at = inspection["modules"][str(module)]
        assert at["paths"] == [arrival.path for arrival in sent]
        assert [step["phase"] for step in at["steps"]] == [1, 2]
        vectors = [
            np.concatenate([leaf.reshape(-1) for _, leaf in trees.flatten(message)])
            for message in (load_tree(opened.objects, arrival.message) for arrival in sent)
        ]
        norms = [float(np.linalg.norm(vector)) for vector in vectors]
        last = at["steps"][-1]
        assert list(last["norms"].values()) == pytest.approx(norms, rel=1e-5)
        cosine = float(vectors[0] @ vectors[1]) / (norms[0] * norms[1])
        assert last["cosine"] == pytest.approx(cosine, abs=1e-4)
    shown = dipaco("inspect", "--run", tiny.folder, "--picture", picture)
    assert f"path   0  {shards['documents'][0]} documents" in shown.out
    assert "module late/0001  fan-in 2, phases 1 to 2" in shown.out


def test_inspect_before_anything_is_routed_says_so(dipaco, config_file, tmp_path):
    command = ("train", config_file, "--run", tmp_path / "run")
    assert dipaco(*command, fault=Fault("after record", "prepare")).fired
    ended = dipaco("inspect", "--run", tmp_path / "run")
    assert ended.code == 2
    assert "NotAvailable: This run has no stage `route` yet" in ended.err


# --- rollback, upgrade ------------------------------------------------------------------------


def test_a_run_goes_back_and_ends_again_with_the_facts_that_it_had(dipaco, tiny, copy_of):
    run = copy_of(tiny)
    before = facts(run.folder)
    ended = dipaco("rollback", "--run", run.folder, "--phase", 1)
    assert ended.code == 0, ended.err
    assert (
        "The run is at phase 1 again. Set aside: 4 modules, 8 contributions, 4 trained" in ended.out
    )
    status = as_json(dipaco("status", "--run", run.folder, "--json"))
    assert {module["phase"] for module in status["modules"].values()} == {1}
    assert status["rollbacks"][0]["set_aside"]["modules"] == 4
    ended = dipaco("train", run.config, "--run", run.folder)
    assert ended.code == 0, ended.err
    assert facts(run.folder) == before
    ended = dipaco("rollback", "--run", run.folder, "--phase", 7)
    assert ended.code == 2
    assert "CannotRollBack: The run cannot go back to phase 7: it is at phase 2." in ended.err


def test_a_run_of_another_version_is_refused_until_it_is_upgraded(dipaco, tiny, copy_of):
    run = copy_of(tiny)
    with contextlib.closing(sqlite3.connect(run.folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE meta SET value = '0.0.9' WHERE key = 'version'")
    for verb in ("status", "worker"):
        ended = dipaco(verb, "--run", run.folder)
        assert ended.code == 2
        assert "is a run of dipaco 0.0.9; this is" in ended.err
        assert "`dipaco upgrade --run RUN`" in ended.err
    ended = dipaco("upgrade", "--run", run.folder)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("The run was of dipaco 0.0.9 and is of ")
    assert dipaco("status", "--run", run.folder).code == 0


def test_an_upgrade_that_is_told_to_stop_leaves_the_order_as_it_was(dipaco, tiny, copy_of):
    run = copy_of(tiny)
    with reading(run.folder) as opened:
        here = {"host": "elsewhere", "pid": 1, "machine": "one", "version": "0"}
        opened.ledger.members.join("back", **here)
        words = ["upgrade", "--run", str(run.folder), "--wait-seconds", "600"]
        with subprocess.Popen([sys.executable, "-m", "dipaco.cli.main", *words]) as upgrade:
            until = time.monotonic() + 120
            while opened.ledger.meta.command().name != "drain":
                assert time.monotonic() < until
                time.sleep(0.05)
            upgrade.terminate()
            assert upgrade.wait(timeout=60) == 130
        assert opened.ledger.meta.command().name == "run"
    ended = dipaco("upgrade", "--run", run.folder, "--wait-seconds", "nan")
    assert (ended.code, "`--wait-seconds` is nan." in ended.err) == (2, True)


def test_a_report_that_somebody_removed_is_written_again(dipaco, tiny, copy_of):
    run = copy_of(tiny)
    before = {file.name: file.read_bytes() for file in run.folder.glob("report.*")}
    assert len(before) == 3
    for name in before:
        (run.folder / name).unlink()
    ended = dipaco("train", run.config, "--run", run.folder)
    assert (ended.code, f"Written: {run.folder}/report.md" in ended.out) == (0, True)
    for name in ("report.json", "report.md"):
        assert (run.folder / name).read_bytes() == before[name]
    assert (run.folder / "report.png").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "CONFIG", "--workers", "9999999999"), "`--workers` is 9999999999. Expected 1"),
        (("train", "CONFIG", "--workers", "0"), "`--workers` is 0. Expected 1 to 10000."),
        (("scale", "--workers", "99999999999"), "`--workers` is 99999999999. Expected 0 to"),
        (("monitor", "--metrics-port", "99999"), "`--metrics-port` is 99999. Expected 0 to 65535"),
        (("worker", "--coordinator", "here:1"), "give `--hosts` as well"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(dipaco, tiny, words, says):
    words = [tiny.config if word == "CONFIG" else word for word in words]
    ended = dipaco(*words, "--run", tiny.folder)
    assert (ended.code, says in ended.err) == (2, True), ended.err


# --- generate ---------------------------------------------------------------------------------


def test_greedy_text_is_the_argmax_of_the_full_forward(dipaco, tiny, opened):
    ended = dipaco("generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 12)
    assert ended.code == 0, ended.err
    path = int(ended.err.split()[1])
    release, tokenizer = opened.ledger.facts.release(MODULAR), opened.corpus.tokenizer()
    assert ended.err.startswith(f"path {path} = {' + '.join(release.paths[path])}\n")
    model = opened.config.model
    run = jax.jit(lambda parts, tokens, segments: forward(model, parts, tokens, segments=segments))
    parts = opened.path_of(release, path)
    (ids,) = tokenizer.encode([PROMPT])
    ids = ids.tolist()
    for _ in range(12):
        tokens = np.zeros((1, model.max_length), np.int32)
        tokens[0, : len(ids)] = ids
        logits, _ = run(parts, tokens, (np.arange(model.max_length) < len(ids))[None].astype(int))
        ids.append(int(np.argmax(logits[0, len(ids) - 1])))
    assert ended.out == tokenizer.decode(ids) + "\n"


def test_the_router_s_best_score_names_the_path_and_a_given_path_is_taken(dipaco, tiny):
    ended = dipaco("generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 1)
    first, second, _ = ended.err.split("\n", 2)
    best = second.removeprefix("router's scores, the best first: ").split(", ")
    scores = [float(score.split()[2]) for score in best]
    assert best[0].startswith(f"{' '.join(first.split()[:2])} ")
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 4
    other = 3 - int(first.split()[1])
    arguments = ("--prompt", PROMPT, "--max-tokens", 1, "--path", other)
    assert dipaco("generate", "--run", tiny.folder, *arguments).err.startswith(f"path {other} =")


def test_drawn_text_depends_on_the_seed(dipaco, tiny):
    command = ["generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 12]
    command += ["--temperature", 1.5, "--seed"]
    one, other = (dipaco(*command, seed) for seed in (1, 2))
    assert (one.code, other.code) == (0, 0)
    assert one.out != other.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--prompt", ""], "ContextTooLong: The prompt has 0 tokens"),
        (["--prompt", "word " * 100], "and the context (`max_length`) holds 64"),
        (["--prompt", "x", "--temperature", "-1"], "BadSetting: `temperature` is -1.0."),
        (["--prompt", "x", "--temperature", "nan"], "BadSetting: `temperature` is nan."),
        (["--prompt", "x", "--top-p", "0"], "BadSetting: `top_p` is 0.0."),
        (["--prompt", "x", "--top-k", "-2"], "BadSetting: `top_k` is -2."),
        (["--prompt", "x", "--max-tokens", "0"], "`--max-tokens` is 0. Expected 1 or more."),
        (["--prompt", "x", "--seed", "-1"], "`--seed` is -1."),
        (["--prompt", "x", "--path", "4"], "no path 4; paths are numbered 0 to 3."),
        (["--prompt", "x", "--path", "-1"], "no path -1; paths are numbered 0 to 3."),
        (
            ["--prompt", "x", "--phase", "9"],
            "no release of `modular` at phase 9. It has releases of phases: ",
        ),
        (["--prompt", "x", "--arm", "dens"], "no arm `dens`. It has: base, modular, dense"),
    ],
)
def test_what_cannot_be_generated_is_refused_before_anything_is_shown(
    dipaco, tiny, arguments, error
):
    ended = dipaco("generate", "--run", tiny.folder, *arguments)
    assert ended.code == 2
    assert error in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


# --- evaluate, export -------------------------------------------------------------------------


def test_evaluate_on_the_run_s_own_validation_documents_gives_its_report(
    dipaco, tiny, opened, tmp_path
):
    tokenizer = opened.corpus.tokenizer()
    numbers = opened.corpus.documents("valid")
    texts = [tokenizer.decode(ids) for ids in opened.corpus.tokens(numbers)]
    file = tmp_path / "valid.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = as_json(dipaco("evaluate", "--run", tiny.folder, "--documents", file, "--json"))
    rows = {
        row["name"]: row for row in json.loads((tiny.folder / "report.json").read_text())["rows"]
    }
    assert found["perplexity"] == pytest.approx(rows["modular"]["perplexity"], rel=1e-6)
    assert (found["arm"], found["phase"], found["documents"]) == ("modular", 2, len(numbers))
    routed = opened.stage("route").summary["valid"]
    assert found["paths"] == {str(path): n for path, n in enumerate(routed) if n}
    dense = dipaco(
        "evaluate", "--run", tiny.folder, "--documents", file, "--arm", "dense", "--json"
    )
    assert as_json(dense)["perplexity"] == pytest.approx(rows["dense"]["perplexity"], rel=1e-6)


def test_an_exported_path_has_the_perplexity_in_transformers_that_evaluate_gives(
    dipaco, tiny, documents, tmp_path
):
    torch = pytest.importorskip("torch", reason="needs PyTorch (the extra `parity`)")
    transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")
    arguments = ("--run", tiny.folder, "--documents", documents)
    routed = as_json(dipaco("evaluate", *arguments, "--json"))
    found = as_json(dipaco("evaluate", *arguments, "--path", 2, "--json"))
    assert sum(routed["paths"].values()) == routed["documents"] == 12
    assert (found["documents"], found["too_short"], found["paths"]) == (12, 1, {"2": 12})
    assert found["tokens"] == routed["tokens"] == 12 * (64 - 32)
    assert found["perplexity"] != routed["perplexity"]

    exported = dipaco("export", "--run", tiny.folder, "--path", 2, "--out", tmp_path / "theirs")
    assert exported.code == 0, exported.err
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    nats, count = 0.0, 0
    for line in documents.read_text().splitlines():
        ids = tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"][:64]
        if len(ids) > 32:
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].double()
            log_p = torch.log_softmax(logits, -1)
            nats -= sum(float(log_p[t - 1, ids[t]]) for t in range(32, len(ids)))
            count += len(ids) - 32
    assert count == found["tokens"]
    assert found["perplexity"] == pytest.approx(np.exp(nats / count), rel=1e-3)
    again = dipaco("export", "--run", tiny.folder, "--path", 2, "--out", tmp_path / "theirs")
    assert (again.code, "never overwrites" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("content", "arguments", "error"),
    [
        (None, [], "there is no such file"),
        (b"", [], "NothingToScore: Documents: 0,"),
        (b"short", [], "NothingToScore: Documents: 1,"),
        (b"text \xff\xfe", [], "is not UTF-8 text"),
        (b"text " * 100, ["--path", "9"], "no path 9"),
        (b"text " * 100, ["--phase", "7"], "at phase 7"),
    ],
)
def test_documents_that_cannot_be_evaluated(dipaco, tiny, tmp_path, content, arguments, error):
    file = tmp_path / "notes.txt"
    if content is not None:
        file.write_bytes(content)
    ended = dipaco("evaluate", "--run", tiny.folder, "--documents", file, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert error in ended.err
    assert "Traceback" not in ended.err


def test_a_run_that_is_not_there_or_has_nothing_yet(dipaco, tiny, tmp_path):
    readers = [
        ("status",),
        ("generate", "--prompt", "x"),
        ("export", "--path", 0, "--out", tmp_path / "out"),
    ]
    for verb, *arguments in readers:
        ended = dipaco(verb, "--run", tmp_path / "nowhere", *arguments)
        assert (ended.code, "holds no run. Begin one" in ended.err) == (2, True)
    assert not list(tmp_path.iterdir())


# --- train: again, and from elsewhere ---------------------------------------------------------


def test_a_finished_run_changes_nothing_and_prints_its_table_again(dipaco, tiny):
    def everything():
        files = sorted(file for file in tiny.folder.rglob("*") if file.is_file())
        return {file: file.read_bytes() for file in files if "ledger" not in file.name}

    before, known = everything(), facts(tiny.folder)
    ended = dipaco("train", tiny.config, "--run", tiny.folder)
    assert ended.code == 0, ended.err
    assert everything() == before
    assert facts(tiny.folder) == known
    for name in ("dense", "dense_equal_tokens", "modular", "modular_best_path"):
        assert f"\n{name} " in ended.out


def first_modules(folder: Path) -> dict[str, str]:
    with reading(folder) as run:
        return {
            str(module): trees.digest(run.parameters(MODULAR, module, 0))
            for module in run.config.topology.modules
        }


def test_a_run_starts_from_the_modules_of_another_with_another_config(
    dipaco, tiny, opened, tmp_path
):
    settings = ["inner.learning_rate=1e-3", "inner.steps=2", "outer.momentum=0.5", "baselines=[]"]
    settings = [word for setting in settings for word in ("--set", setting)]
    command = ["train", tiny.config, "--run", tmp_path / "new", "--from", f"{tiny.folder}@1"]
    ended = dipaco(*command, *settings, fault=Fault("after claim", "train"))
    assert ended.fired, ended.err
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


def test_a_dense_run_starts_from_one_path_of_another(dipaco, tiny, opened, tmp_path):
    config = tmp_path / "dense.py"
    dense = CONFIG.replace('"block_00"), experts=2', '"block_00")')
    config.write_text(dense.replace('"head"), experts=2', '"head")'))
    command = ["train", config, "--run", tmp_path / "new", "--from", f"{tiny.folder}@2"]
    ended = dipaco(*command, fault=Fault("after claim", "train"))
    assert ended.fired, ended.err
    newest = {m: trees.digest(opened.parameters(MODULAR, ModuleId.parse(m), 2)) for m in FIRST}
    assert first_modules(tmp_path / "new") == newest


FIRST = ("early/0000", "late/0000")


def test_an_export_of_all_paths_that_was_interrupted_goes_on(dipaco, tiny, tmp_path):
    out = tmp_path / "all"
    export = ("export", "--run", tiny.folder, "--all", "--out", out)
    done = dipaco(*export)
    assert done.code == 0, done.err
    assert "4 paths of modular at phase 2" in done.out
    whole = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    shutil.rmtree(out / "path_0002")
    assert dipaco(*export).out == done.out
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == whole
    (out / "path_0001" / "config.json").unlink()
    lost = dipaco(*export)
    assert (lost.code, "path_0001` lacks config.json. Remove the folder" in lost.err) == (2, True)
    # Of another release it would be a mixture.
    other = dipaco(*export[:3], "--phase", 1, *export[3:])
    assert (other.code, "never overwrites" in other.err) == (2, True)


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


@pytest.mark.parametrize(
    ("source", "settings", "error"),
    [
        ("{tiny}", [], "expected DIR@PHASE"),
        ("{tiny}@last", [], "expected DIR@PHASE"),
        ("{tiny}@9", [], "have reached phases 0 to 2, not 9"),
        ("{tiny}-nowhere@1", [], "holds no run"),
        ("{tiny}@1", ["--set", "model.d_ff=64"], "`model.d_ff` is 48 there and 64 here"),
    ],
)
def test_a_run_that_cannot_be_started_from(dipaco, tiny, tmp_path, source, settings, error):
    start = source.format(tiny=tiny.folder)
    ended = dipaco("train", tiny.config, "--run", tmp_path / "new", "--from", start, *settings)
    assert (ended.code, error in ended.err) == (2, True), ended.err
    assert not (tmp_path / "new" / "ledger.sqlite").exists()


# --- config, help -----------------------------------------------------------------------------


def test_config_show_lists_settings_as_they_will_be(dipaco, config_file):
    arguments = ("config", "show", config_file, "--set", "inner.steps=50", "--set", "phases=7")
    shown = dipaco(*arguments)
    assert "inner.steps = 50\n" in shown.out
    assert "arm modular: 350 steps a path in 7 phases" in shown.out
    assert "level early: 2 experts, owns embed, block_00" in shown.out
    settings = as_json(dipaco(*arguments, "--json"))
    assert (settings["inner"]["steps"], settings["phases"]) == (50, 7)


@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "train --help", "config show CONFIG", "train CONFIG --set x=1"],
)
def test_help_and_settings_are_answered_without_loading_jax(arguments, config_file):
    words = arguments.replace("CONFIG", str(config_file)).split()
    if "train" in words and "--help" not in words:
        words += ["--run", "/nowhere"]
    program = f"""
import sys
import time
from dipaco.cli.main import main
try:
    main({words!r})
except SystemExit:
    pass
print("LOADED", *sorted({{"jax", "flax", "numpy", "orbax", "grain"}} & set(sys.modules)))
"""
    home = str(Path(__file__).parents[2])
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=home, check=True
    )
    assert ended.stdout.splitlines()[-1] == "LOADED", ended.stdout


@pytest.mark.parametrize(
    ("output", "code", "said"), [("/dev/full", 2, "DiskFull: No space left"), ("pipe", 0, "")]
)
def test_output_that_nobody_can_take_makes_no_traceback(config_file, output, code, said):
    home = str(Path(__file__).parents[2])
    command = f"'{sys.executable}' -m dipaco.cli.main config show '{config_file}'"
    # `false` reads nothing.
    script = f"{command} > /dev/full" if output == "/dev/full" else f"{command} | false"
    ended = subprocess.run(
        ["bash", "-c", f"{script}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        cwd=home,
    )
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert said in ended.stderr
