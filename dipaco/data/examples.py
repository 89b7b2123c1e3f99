"""Examples of prompts: how texts of the corpus begin."""

import itertools

import numpy as np

from dipaco.data.corpus import Corpus

MOST_EXAMPLES = 5
MOST_CHARACTERS = 48
TOKENS_READ = 32
TRIED = 20  # documents of a domain, at most


def prompt_examples(corpus: Corpus) -> list[str]:
    """The first words of test documents, which trained no model, from the largest domains in
    turn. They are whole words, and none comes twice.
    """
    test = corpus.documents("test")
    domains, counts = np.unique(corpus.domains[test], return_counts=True)
    of_domains = [
        _beginnings(corpus, test[corpus.domains[test] == domain])
        for domain in domains[np.argsort(-counts, kind="stable")]
    ]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*of_domains))
    return list(dict.fromkeys(text for text in in_turn if text))[:MOST_EXAMPLES]


def _beginnings(corpus: Corpus, documents: np.ndarray) -> list[str]:
    """Beginnings of documents that begin a text, then of pieces from the middle of one."""
    documents = documents[np.argsort(~corpus.edges.begins_N[documents], kind="stable")][:TRIED]
    tokenizer = corpus.tokenizer()
    texts = (tokenizer.decode(tokens[:TOKENS_READ]) for tokens in corpus.tokens(documents))
    return [words for words in map(first_words, texts) if words]


def first_words(text: str) -> str:
    """The words that fit into MOST_CHARACTERS, without a blank behind them, which most tokenizers
    give to the next word. Empty if a text is no words, or begins with a rule such as =====.
    """
    text = text.partition("\ufffd")[0].lstrip()
    if not any(map(str.isalnum, text.partition("\n")[0])):
        return ""
    if len(text) <= MOST_CHARACTERS:
        return text.rstrip()
    words = text[: MOST_CHARACTERS + 1]
    while words and not words[-1].isspace():
        words = words[:-1]
    return words.rstrip()
