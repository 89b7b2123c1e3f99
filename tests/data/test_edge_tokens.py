"""Texts begin with a start token and end with an end token, in training rows and nowhere else."""

import dataclasses
import json

import numpy as np
import pytest

from dipaco.data import near_duplicates, text_files
from dipaco.data.config import END_OF_TEXT, CorpusConfig, EdgeNames, data_from, edge_names
from dipaco.data.errors import BadTokenizer
from dipaco.data.pipeline import Rows
from dipaco.data.prepare import check_files, prepare
from dipaco.data.shards import build_shard
from dipaco.data.sources import open_source
from dipaco.data.tokenizer import edge_names_of_checkpoint, load_tokenizer
from dipaco.errors import BadSetting
from dipaco.overrides import load_config

TOY = CorpusConfig(sources=("toy:?documents=60",), vocab_size=300, processes=1)
ROW = 48


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare(TOY, tmp_path_factory.mktemp("corpus"))


def trained_on(corpus, documents) -> dict[int, list[int]]:
    """document -> its tokens, put together from the rows that are trained on."""
    plan = build_shard(corpus, 0, documents, ROW, seed=0).plan
    rows, found = Rows(corpus, plan), {}
    for k in range(plan.num_rows):
        row, place = rows[k], 0
        for document, start, length in plan.row(k):
            piece = row["tokens"][place : place + length].tolist()
            found.setdefault(document, []).append((start, piece))
            place += length
    return {d: [t for _, piece in sorted(pieces) for t in piece] for d, pieces in found.items()}


def test_a_text_is_trained_on_between_its_edges(corpus):
    end = corpus.edges.tokens.end
    assert corpus.edges.tokens == (end, end)
    assert corpus.edge_names == (END_OF_TEXT, END_OF_TEXT)
    documents = corpus.documents("train")
    rows = trained_on(corpus, documents)
    for document, tokens in zip(documents.tolist(), corpus.tokens(documents), strict=True):
        assert rows[document] == [end, *tokens.tolist(), end]
        assert end not in tokens


def test_the_corpus_is_the_text_alone_with_and_without_edges(corpus, tmp_path):
    without = prepare(dataclasses.replace(TOY, end_of_text=False), tmp_path)
    numbers = np.arange(corpus.num_documents)
    for one, other in zip(corpus.tokens(numbers), without.tokens(numbers), strict=True):
        np.testing.assert_array_equal(one, other)
    assert without.edges.tokens == (None, None)
    assert without.digest != corpus.digest
    (document,) = without.tokens([0])
    assert trained_on(without, [0])[0] == document.tolist()


def test_without_a_start_token_a_text_begins_with_its_own(tmp_path):
    corpus = prepare(dataclasses.replace(TOY, start_token=""), tmp_path)
    (document,) = corpus.tokens([0])
    assert trained_on(corpus, [0])[0] == [*document.tolist(), corpus.edges.tokens.end]


def test_only_the_first_and_the_last_piece_of_a_cut_text_have_edges(tmp_path):
    cut = dataclasses.replace(TOY, max_document_bytes=200)
    corpus = prepare(cut, tmp_path)
    begins, ends = corpus.edges.begins_N, corpus.edges.ends_N
    assert begins.sum() == ends.sum() == 60
    assert corpus.num_documents > 120
    rows = trained_on(corpus, np.arange(corpus.num_documents))
    end = corpus.edges.tokens.end
    for document, tokens in rows.items():
        assert (tokens[0] == end, tokens[-1] == end) == (begins[document], ends[document])


def test_a_text_that_a_cap_cut_off_has_no_end(tmp_path, monkeypatch):
    monkeypatch.setattr(near_duplicates, "MOST_CUT", 0.0)  # pieces are whole
    capped = dataclasses.replace(
        TOY,
        max_document_bytes=200,
        max_bytes_per_domain=4700,
        held_fraction=0.3,
        router_fraction=0.3,
    )
    corpus = prepare(capped, tmp_path)
    for domain in range(4):
        here = corpus.domains == domain
        assert corpus.edges.begins_N[here].sum() == corpus.edges.ends_N[here].sum() + 1


def test_a_file_that_is_read_in_blocks_is_one_text(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 100)
    lines = "".join(f"line {number} of the file, ünïcödé\n" for number in range(40))
    lines += "é" * 250  # a line of several blocks
    (tmp_path / "a.txt").write_text(lines)
    blocks = list(open_source(f"text:{tmp_path}/a.txt").documents)
    assert "".join(block.text for block in blocks) == lines
    assert len(blocks) > 3
    edges = [(block.begins, block.ends) for block in blocks]
    assert edges == [(True, False), *[(False, False)] * (len(blocks) - 2), (False, True)]


@pytest.mark.parametrize("text", ["one line\n   ", "   \none line", "  \n one line\n\n  "])
def test_blank_blocks_take_no_edge_away(tmp_path, monkeypatch, text):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 4)
    (tmp_path / "a.txt").write_text(text)
    blocks = list(open_source(f"text:{tmp_path}/a.txt").documents)
    assert all(block.text.strip() for block in blocks)
    assert (blocks[0].begins, blocks[-1].ends) == (True, True)


# --- which tokens they are --------------------------------------------------------------------


@pytest.fixture
def given_tokenizer(corpus, tmp_path):
    """A copy of a tokenizer with two more special tokens, and one that is not special."""
    tokenizer = load_tokenizer(corpus.tokenizer_file).library
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["plain"])
    file = tmp_path / "given" / "tokenizer.json"
    file.parent.mkdir()
    tokenizer.save(str(file))
    return file


def names(given_tokenizer, **more):
    return edge_names(CorpusConfig(tokenizer=str(given_tokenizer), vocab_size=310, **more))


def test_a_given_tokenizer_says_its_own_edges(given_tokenizer):
    assert names(given_tokenizer) == (END_OF_TEXT, END_OF_TEXT)
    beside = given_tokenizer.with_name("tokenizer_config.json")
    beside.write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert names(given_tokenizer) == ("</s>", "</s>")
    beside.write_text(json.dumps({"eos_token": "</s>", "bos_token": "<s>"}))
    assert names(given_tokenizer) == ("<s>", "</s>")
    assert names(given_tokenizer, start_token="", end_token=END_OF_TEXT) == (None, END_OF_TEXT)
    assert names(given_tokenizer, end_of_text=False) == (None, None)


def test_the_edges_of_a_checkpoint_are_found_by_name_or_by_id(given_tokenizer):
    folder, tokenizer = given_tokenizer.parent, load_tokenizer(given_tokenizer)
    assert edge_names_of_checkpoint(folder, tokenizer) == EdgeNames()
    id_of = tokenizer.library.token_to_id
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [id_of("</s>"), 0]}))
    assert edge_names_of_checkpoint(folder, tokenizer) == EdgeNames("</s>", "</s>")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": None, "bos_token_id": -1})
    )
    assert edge_names_of_checkpoint(folder, tokenizer) == EdgeNames("</s>", "</s>")
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": id_of("<s>")}))
    assert edge_names_of_checkpoint(folder, tokenizer) == EdgeNames("<s>", "</s>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": None}))
    assert edge_names_of_checkpoint(folder, tokenizer) == EdgeNames("</s>", "</s>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    assert edge_names_of_checkpoint(folder, tokenizer) == EdgeNames("<s>", "</s>")


def test_a_run_goes_on_with_the_edges_of_what_it_starts_from(given_tokenizer):
    def goes_on(*there, **settings):
        config = CorpusConfig(vocab_size=310, **settings)
        return edge_names(data_from(config, given_tokenizer, EdgeNames(*there)))

    assert goes_on("<s>", "</s>") == ("<s>", "</s>")
    assert goes_on(None, "</s>") == (None, "</s>")
    assert goes_on("<s>", None) == ("<s>", END_OF_TEXT)
    assert goes_on(None, None) == (END_OF_TEXT, END_OF_TEXT)
    assert goes_on("<s>", "</s>", start_token="") == (None, "</s>")
    assert goes_on("<s>", "</s>", end_of_text=False) == (None, None)


@pytest.mark.parametrize("name", ["plain", "</end>"])
def test_an_end_that_is_no_special_token_is_refused(given_tokenizer, tmp_path, name):
    config = dataclasses.replace(
        TOY, tokenizer=str(given_tokenizer), vocab_size=310, end_token=name
    )
    with pytest.raises(BadTokenizer, match=rf"`{name}`.*`data\.end_token`"):
        prepare(config, tmp_path / "corpus")
    with pytest.raises(BadTokenizer, match=rf"given/tokenizer\.json cannot .*`{name}`"):
        check_files(config)  # before any text is read, and of the file that was named
    check_files(dataclasses.replace(config, end_token="</s>"))


def test_a_given_tokenizer_alone_is_enough(given_tokenizer):
    def with_special(*tokens):
        content = json.loads(given_tokenizer.read_text())
        for token in content["added_tokens"]:
            token["special"] = token["content"] in tokens
        given_tokenizer.write_text(json.dumps(content))
        return names(given_tokenizer)

    config = load_config("toy", [f"data.tokenizer={given_tokenizer}"])
    assert config.model.vocab_size == load_tokenizer(given_tokenizer).vocab_size
    assert with_special("<s>", "</s>") == ("<s>", "</s>")
    assert with_special("</s>") == ("</s>", "</s>")
    check_files(config.corpus)
    with_special()
    with pytest.raises(BadTokenizer) as refusal:  # all of it at once
        check_files(dataclasses.replace(config.corpus, vocab_size=290))
    for word in ("`model.vocab_size=303`", "`<|endoftext|>`", "`data.end_token`"):
        assert word in str(refusal.value)


def test_an_empty_end_is_refused():
    with pytest.raises(BadSetting, match=r"`data\.end_token`"):
        dataclasses.replace(TOY, end_token="")
