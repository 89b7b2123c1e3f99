"""Examples of prompts: the first words of test documents, from every domain in turn."""

import json

import numpy as np
import pytest

from dipaco.data.config import CorpusConfig
from dipaco.data.examples import MOST_CHARACTERS, MOST_EXAMPLES, first_words, prompt_examples
from dipaco.data.prepare import prepare


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  And God said unto Moses", "And God said unto Moses"),
        (f"{'word ' * 9}longer than this", ("word " * 9).strip()),
        ("a" * MOST_CHARACTERS, "a" * MOST_CHARACTERS),
        ("a" * (MOST_CHARACTERS + 1), ""),
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        ("וַיֹּאמֶר אֱלֹהִים \ufffd", "וַיֹּאמֶר אֱלֹהִים"),
        ("=====\nTitle\n=====", ""),
        (" \n ", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_whole_words_are_taken(text, words):
    assert first_words(text) == words


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rows = [
        {"text": f"{domain} {number} " + f"word{number} " * 90, "domain": domain}
        for domain, count in (("large", 120), ("middle", 60), ("small", 40))
        for number in range(count)
    ]
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    settings = CorpusConfig(
        sources=(f"jsonl:{file}",),
        vocab_size=300,
        processes=1,
        held_fraction=0.3,
        max_document_bytes=256,
    )
    return prepare(settings, folder / "corpus")


def test_examples_are_the_beginnings_of_test_texts_of_all_domains(corpus):
    examples = prompt_examples(corpus)
    assert len(examples) == MOST_EXAMPLES == len(set(examples))
    assert [text.split()[0] for text in examples] == ["large", "middle", "small", "large", "middle"]
    assert all(0 < len(text) <= MOST_CHARACTERS for text in examples)
    decode = corpus.tokenizer().decode
    texts = [decode(tokens) for tokens in corpus.tokens(corpus.documents("test"))]
    for text in examples:
        assert any(document.startswith(text) for document in texts)
    assert prompt_examples(corpus) == examples


def test_pieces_from_the_middle_of_texts_are_taken_last(corpus, monkeypatch):
    monkeypatch.setattr(
        corpus, "edges", corpus.edges._replace(begins_N=np.zeros(corpus.num_documents, bool))
    )
    assert len(prompt_examples(corpus)) == MOST_EXAMPLES
