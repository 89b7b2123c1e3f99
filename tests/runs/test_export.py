"""`dipaco export --all`: checkpoints that share files, and a router that stands alone."""

import dataclasses
import errno
import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from dipaco.data.toy import toy_documents
from dipaco.model.huggingface import read_checkpoint
from dipaco.model.spec import describe
from dipaco.routing.config import RoutingConfig
from dipaco.routing.router import fit_router, linear_router
from dipaco.runs.opening import reading
from dipaco.runs.reading.card import model_card
from dipaco.runs.reading.export import Format, export_all, export_path
from dipaco.runs.routing import base_features, prefixes_of
from dipaco.runs.small_models import small_config
from dipaco.serving.continuation import paths_of_texts
from dipaco.serving.http.chat_template import chat_of_run
from dipaco.trees import flatten


@pytest.fixture
def run(tiny):
    with reading(tiny.folder) as run:
        yield run


@pytest.fixture
def release(run):
    return run.ledger.facts.release("modular")


@pytest.fixture
def transformers():
    torch = pytest.importorskip("torch", reason="parity needs the `parity` extra")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for one another, on a machine that does other work
    yield pytest.importorskip("transformers", reason="needs the `parity` extra")
    torch.set_num_threads(threads)


def texts(number):
    """Of all lengths: one token, fewer than the router reads, and more."""
    random = np.random.default_rng(0)
    some = toy_documents(clusters=4, documents=number, words=40, seed=7)
    return [each.text[: random.integers(1, 150)] for each in some]


def with_small_models(run):
    model = small_config(run.config.model, run.config.data.prefix_tokens)
    rng = np.random.default_rng(3)
    vars(run)["small_models"] = {
        f"{path:06d}": jax.tree.map(
            lambda spec: rng.normal(len(spec.shape) == 1, 0.3, spec.shape).astype(np.float32),
            describe(model),
        )
        for path in range(4)
    }
    return linear_router("small_models", np.eye(4, dtype=np.float32))


ROUTERS = {
    "kmeans": {"kind": "kmeans"},
    "product": {"kind": "product_kmeans", "normalise": "standardise_l2"},
    "priced": {"kind": "product_kmeans", "capacity": 1.0, "floor": 1.0},
    "discriminative": {"kind": "kmeans"},
    "small_models": {"kind": "small_models"},
    "likelihood": {"kind": "kmeans", "rule": "likelihood", "shortlist": 2, "prior": 1.0},
}


def given_router(run, release, name, texts):
    """Gives the run a router of another kind, in memory, and the settings that belong to it."""
    routing = RoutingConfig(**ROUTERS[name])
    vars(run)["config"] = dataclasses.replace(run.config, routing=routing)
    features_ND = base_features(run, *prefixes_of(run, run.corpus.tokenizer().encode(texts)))
    if name == "small_models":
        router = with_small_models(run)
    elif name == "discriminative":
        weights = np.random.default_rng(1).normal(0, 1, (features_ND.shape[1], 4))
        bias = (features_ND.mean(axis=0) @ weights).astype(np.float64)
        router = dataclasses.replace(
            linear_router("discriminative", weights.astype(np.float32)), price_P=bias
        )
    else:
        router = fit_router(routing, features_ND, (2, 2), seed=5)
    run._routers[release.companions["router"]] = router


def same_paths(run, release, name, number, folder):
    given = texts(number)
    given_router(run, release, name, given[:100])
    with pytest.MonkeyPatch.context() as patch:  # The run has no figures of such a router.
        patch.setattr("dipaco.runs.reading.card._results", lambda run: "")
        _, problem = export_all(run, release, folder)
    assert problem is None
    expected = paths_of_texts(run, release, given)
    assert len(set(expected.tolist())) > 1, "they all go to one path, which tells nothing"
    router = route_file(folder).Router()
    assert [router.path(text) for text in given] == expected.tolist()
    return router


def route_file(folder):
    spec = importlib.util.spec_from_file_location("exported_route", folder / "route.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_alone_chooses_the_same_paths(transformers, run, release, name, tmp_path):
    router = same_paths(run, release, name, 30, tmp_path / "out")
    asked = texts(30)[7]
    chat = [{"role": "system", "content": "sys"}, {"role": "user", "content": asked}]
    assert router.path_of_chat(chat) == router.path(asked)
    parts = [{"role": "user", "content": [{"type": "text", "text": asked}, {"type": "image"}]}]
    assert router.path_of_chat(parts) == router.path(asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_so_it_does_for_a_thousand_prompts(transformers, run, release, name, tmp_path):
    same_paths(run, release, name, 1000, tmp_path / "out")


def test_it_needs_no_dipaco_and_finds_files_that_were_changed(transformers, run, release, tmp_path):
    out = tmp_path / "out"
    export_all(run, release, out)
    command = [sys.executable, "-S", str(out / "route.py"), "jiji"]
    paths = [each for each in sys.path if each.endswith("site-packages")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    (expected,) = paths_of_texts(run, release, ["jiji"])
    assert (found.stdout.strip(), found.returncode) == (str(expected), 0), found.stderr
    assert "dipaco" not in (out / "route.py").read_text().partition('"""\n\n')[2]
    with (out / "router" / "base" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(SystemExit, match="has changed"):
        route_file(out).Router()


def test_a_router_that_cannot_stand_alone_says_so(run, release, tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ROUTERS, "random", {"kind": "random"})
        given_router(run, release, "random", texts(100))
    _, problem = export_all(run, release, tmp_path / "drawn")
    assert "drawn by the last bits" in problem
    assert not (tmp_path / "drawn" / "router.json").exists()
    monkeypatch.setitem(
        vars(run), "rules", {"router": SimpleNamespace(name="own.router", digest="of its source")}
    )
    _, problem = export_all(run, release, tmp_path / "own")
    assert "own rule" in problem


@pytest.mark.parametrize("has_links", [True, False])
def test_a_module_is_stored_once_where_the_file_system_links(
    run, release, tmp_path, monkeypatch, has_links
):
    def link(source, target):
        raise OSError(errno.EPERM, "no links here")

    if not has_links:
        monkeypatch.setattr(os, "link", link)
    folders, _ = export_all(run, release, tmp_path / "out")
    files = [file for at in folders.values() for file in at.glob("*.safetensors")]
    assert len(files) == 8, "four paths of two modules"
    places = {file.stat().st_ino for file in files}
    assert len(places) == (4 if has_links else 8)
    for path, at in folders.items():
        config, parts = read_checkpoint(at)
        assert config.d_model == run.config.model.d_model
        expected = dict(flatten(run.path_of(release, path)))
        for name, value in flatten(parts):
            np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_path_is_loaded_by_transformers(transformers, run, release, dtype, tmp_path):
    torch = pytest.importorskip("torch")
    folders, _ = export_all(run, release, tmp_path / "out", Format(dtype))
    ids = run.corpus.tokenizer().encode(texts(5)[3:4])[0][:30]
    tokens = torch.tensor([ids.tolist()])
    for path, at in folders.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(at)
        assert model.dtype == getattr(torch, dtype)
        whole = tmp_path / f"whole_{path}"
        export_path(run, release, path, whole, Format(dtype))
        alone = transformers.AutoModelForCausalLM.from_pretrained(whole)
        with torch.no_grad():
            assert torch.equal(model(tokens).logits, alone(tokens).logits)
    chat = [{"role": "user", "content": "ba"}, {"role": "assistant", "content": "bi"}]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[0])
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered == chat_of_run(run).render(chat) == "ba\nbi"
    index = json.loads((folders[0] / "model.safetensors.index.json").read_text())
    size = 4 if dtype == "float32" else 2
    values = sum(np.prod(spec.shape) for _, spec in flatten(describe(run.config.model)))
    assert index["metadata"]["total_size"] == size * values


def test_its_card_has_the_report_and_no_licence_and_an_edited_one_stays(
    run, release, tiny, tmp_path, monkeypatch
):
    yaml = pytest.importorskip("yaml")
    out = tmp_path / "out"
    export_all(run, release, out)
    card = (out / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["dipaco"],
    }
    assert "# toy: 4 paths\n" in text
    assert "Not stated yet." in text
    assert "4 paths through 4 modules" in text
    report = (tiny.folder / "report.md").read_text()
    tables = [line for line in report.splitlines() if line.startswith("|")]
    assert len(tables) > 10
    assert set(tables) < set(text.splitlines())
    assert str(tiny.folder) not in card
    (out / "README.md").write_text("mine")
    export_all(run, release, out)
    assert (out / "README.md").read_text() == "mine"
    assert "# toy: path 2 of 4\n" in model_card(run, release, 2)
    monkeypatch.setattr(run.ledger.queue, "unfinished", lambda: ["a task"])
    assert "had not finished" in model_card(run, release, 2)
