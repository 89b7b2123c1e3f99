"""`dipaco evaluate` and `dipaco export`: perplexities here and in `transformers` agree."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from dipaco.data.document import cut_text
from dipaco.data.toy import toy_documents
from dipaco.model.config import MeshConfig
from dipaco.runs.opening import reading
from dipaco.runs.reading.evaluate_texts import evaluate_texts
from tests.cli.conftest import as_json


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> Path:
    """Twelve documents the run has not seen, and one that is too short to evaluate."""
    file = tmp_path_factory.mktemp("documents") / "new [1].jsonl"  # a name that is also a pattern
    texts = [document.text for document in toy_documents(documents=12, words=30, seed=7)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, "short"]))
    return file


def test_on_the_test_documents_evaluate_gives_the_perplexity_of_the_report(
    here, tiny, opened, tmp_path
):
    tokenizer = opened.corpus.tokenizer()
    numbers = opened.corpus.documents("test")
    texts = [tokenizer.decode(ids) for ids in opened.corpus.tokens(numbers)]
    file = tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    beginnings = ("--documents", file, "--beginnings", "--json")
    found = as_json(here("evaluate", "--run", tiny.folder, *beginnings))
    rows = {
        row["name"]: row for row in json.loads((tiny.folder / "report.json").read_text())["rows"]
    }
    assert found["perplexity"] == pytest.approx(rows["modular"]["perplexity"], rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(rows["modular"]["bits_per_byte"], rel=1e-6)
    ids = [each[32 : opened.config.data.length] for each in tokenizer.encode(texts)]
    assert found["bytes"] == sum(len(tokenizer.decode(each).encode()) for each in ids)
    bits = found["tokens"] * math.log2(found["perplexity"])
    assert found["bits_per_byte"] == pytest.approx(bits / found["bytes"])
    assert (found["arm"], found["phase"], found["documents"]) == ("modular", 2, len(numbers))
    routed = opened.stage("route").summary["test"]
    assert found["paths"] == {str(path): n for path, n in enumerate(routed) if n}
    dense = here("evaluate", "--run", tiny.folder, "--arm", "dense", *beginnings)
    assert as_json(dense)["perplexity"] == pytest.approx(rows["dense"]["perplexity"], rel=1e-6)


def test_a_long_text_is_evaluated_whole_in_windows(here, tiny, opened, tmp_path):
    """Each document by its windows, one after another, as a loop over the model's own values."""
    (tmp_path / "notes").mkdir()
    for number in (7, 8):
        texts = [each.text for each in toy_documents(documents=40, words=30, seed=number)]
        (tmp_path / f"notes/{number}.txt").write_text("\n".join(texts))
    (tmp_path / "notes/9.py").write_text("not read")
    evaluate = ("evaluate", "--run", tiny.folder, "--path", 1, "--json", "--documents")
    found = as_json(here(*evaluate, tmp_path / "notes"))
    assert found == as_json(here(*evaluate, tmp_path / "notes/*.txt"))
    data, tokenizer = opened.config.data, opened.corpus.tokenizer()
    release = opened.ledger.facts.release("modular")
    log_likelihoods = opened.scoring_programs.log_likelihoods(opened.path_of(release, 1))
    nats = count = of = windows = 0
    pieces = [
        piece
        for number in (7, 8)
        for piece in cut_text((tmp_path / f"notes/{number}.txt").read_text(), 8192)
    ]
    for tokens in tokenizer.encode(pieces):
        of += len(tokens)
        for first in range(32, len(tokens), data.length - 32):  # the next token to be predicted
            window = tokens[first - 32 :][: data.length]
            batch = np.zeros((opened.config.evaluation.batch_size, data.length), np.int32)
            batch[0, : len(window)] = window
            segments = (np.arange(data.length) < len(window)).astype(np.int32) + 0 * batch
            values = np.asarray(log_likelihoods(batch, segments))[0, 32 : len(window)]
            nats, count, windows = nats - values.sum(dtype=float), count + len(values), windows + 1
    assert windows > 2 * len(pieces) > 4
    assert count == of - 32 * len(pieces)
    expected = {"tokens": count, "of_tokens": of, "windows": windows, "documents": len(pieces)}
    assert {name: found[name] for name in expected} == expected
    assert found["perplexity"] == pytest.approx(np.exp(nats / count), rel=1e-5)
    beginnings = here(*evaluate[:-2], "--beginnings", "--documents", tmp_path / "notes")
    counted = sum(min(len(tokens), data.length) - 32 for tokens in tokenizer.encode(pieces))
    of_each = f"in {len(pieces)} windows of {len(pieces)} documents"
    assert f"over {counted} of {of:,} tokens, {of_each}" in beginnings.out
    assert "read: 2 .txt. Not read: 1 .py." in beginnings.err


@pytest.mark.slow
def test_an_exported_path_has_the_same_perplexity_in_transformers(
    dipaco, tiny, documents, tmp_path
):
    torch = pytest.importorskip("torch", reason="needs PyTorch (the extra `parity`)")
    transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")
    arguments = ("--run", tiny.folder, "--documents", documents, "--beginnings")
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


BAD_DOCUMENTS = [
    (None, "", "there is no such file"),
    (b"", "", "NoTexts: There is no text to evaluate"),
    (b"short", "", "NothingToScore: Documents: 1,"),
    (b"text \xff\xfe", "", "NoGoodRow: None of the 1 rows"),
    (b"text " * 100, "--path 9", "no path 9"),
    (b"text " * 100, "--phase 7", "at phase 7"),
]


def test_bad_documents_are_refused(here, tiny, tmp_path):
    file = tmp_path / "notes.txt"
    for content, words, error in BAD_DOCUMENTS:
        if content is not None:
            file.write_bytes(content)
        ended = here("evaluate", "--run", tiny.folder, "--documents", file, *words.split())
        assert (ended.code, ended.out, error in ended.err) == (2, "", True), (error, ended.err)
        assert "Traceback" not in ended.err
        assert "bad_rows" not in ended.err  # there is no such option here


def test_what_cannot_be_read_is_left_out_and_counted(here, tiny, documents, tmp_path):
    lines = documents.read_text().splitlines()
    (tmp_path / "new.jsonl").write_text("\n".join([*lines[:4], "{", *lines[4:]]))
    evaluate = ("evaluate", "--run", tiny.folder, "--json", "--documents")
    ended = here(*evaluate, tmp_path / "new.jsonl")
    assert "Left out, since they cannot be read: 1 of 14 rows" in ended.err
    assert ended.out == here(*evaluate, documents).out
    for name in ("one", "two"):  # each file is a source
        (tmp_path / f"{name}.txt").write_bytes(b"caf\xe9")
    ended = here(*evaluate, tmp_path)
    assert f"Left out, since they cannot be read: 2 of 2 files of `text:{tmp_path}`." in ended.err
    assert ended.out == here(*evaluate, documents).out


def test_a_run_of_a_mesh_is_evaluated_with_fewer_devices(tiny, monkeypatch):
    texts = [document.text for document in toy_documents(documents=12, words=30, seed=7)]
    with reading(tiny.folder) as run:
        release = run.ledger.facts.release("modular")
        expected = evaluate_texts(run, release, texts)
    with reading(tiny.folder) as run:
        config = dataclasses.replace(run.config, mesh=MeshConfig(tensor=16))
        monkeypatch.setitem(vars(run), "config", config)
        for rule in ("features", "likelihood"):
            found = evaluate_texts(run, release, texts, rule=rule)
            if rule == "features":
                assert found == expected
            assert found["documents"] == expected["documents"]


def test_an_interrupted_export_of_all_paths_continues(here, tiny, tmp_path):
    out = tmp_path / "all"
    export = ("export", "--run", tiny.folder, "--all", "--out", out)
    done = here(*export)
    assert done.code == 0, done.err
    assert "4 paths of modular at phase 2" in done.out
    whole = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    shutil.rmtree(out / "path_0002")
    assert here(*export).out == done.out
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == whole
    said = as_json(here(*export, "--json"))
    assert (said["arm"], said["phase"], len(said["paths"])) == ("modular", 2, 4)
    size = sum(file.stat().st_size for file in (out / "path_0002").iterdir())
    modules = ["early/0001", "late/0000"]
    at = str(out / "path_0002")
    assert said["paths"][2] == {"path": 2, "at": at, "bytes": size, "modules": modules}
    assert size < said["bytes_on_disk"] < 4 * size
    (out / "path_0001" / "config.json").unlink()
    lost = here(*export)
    assert (lost.code, "path_0001` lacks config.json. Remove the folder" in lost.err) == (2, True)
    # Of another release it would be a mixture.
    other = here(*export[:3], "--phase", 1, *export[3:])
    assert (other.code, "never overwrites" in other.err) == (2, True)
