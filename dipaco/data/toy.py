"""A generated corpus with known clusters: `toy:?clusters=4&documents=400&words=120`.

Each cluster is a small language: forty words over its own letters, and for every word four that
may follow it, and one follows most often. There is something to learn inside a cluster and nothing
across clusters, a router that works finds the clusters, and a test knows the answer. The text is
the same on every machine: `random.Random` guarantees its stream.
"""

import random
from collections.abc import Callable, Iterator

from dipaco.data.document import Document

WORDS_IN_A_LANGUAGE = 40
FOLLOWERS = 4
CONSONANTS = "bcdfghjklmnpqrstvwxz"
VOWELS = "aeiouy"
DOCUMENTS, WORDS = 400, 120
BYTES_OF_A_WORD = 7


def num_bytes_of(documents: int | None, words: int | None) -> int:
    """About the bytes of a corpus with this many documents of this many words. None = as usual."""
    documents = DOCUMENTS if documents is None else documents
    return documents * (WORDS if words is None else words) * BYTES_OF_A_WORD


def toy_documents(
    *,
    clusters: int = 4,
    documents: int = DOCUMENTS,
    words: int = WORDS,
    seed: int = 0,
    part: Callable[[int], range] = range,
) -> Iterator[Document]:
    """Documents of `words` words, clusters in turn. The domain is `toy_00`, `toy_01`, ... Which of
    their numbers come, `part` says.
    """
    languages = [_language(random.Random(f"{seed}/{cluster}")) for cluster in range(clusters)]
    for number in part(documents):
        cluster = number % clusters
        text = _make_text(languages[cluster], words, random.Random(f"{seed}/document/{number}"))
        yield Document(text=text, domain=f"toy_{cluster:02d}", group=f"toy/{seed}/{number}")


def _language(dice: random.Random) -> dict[str, list[str]]:
    """Word -> the words that may follow it, the most likely first."""
    consonants, vowels = dice.sample(CONSONANTS, 5), dice.sample(VOWELS, 2)
    words: dict[str, None] = {}
    while len(words) < WORDS_IN_A_LANGUAGE:
        syllables = (dice.choice(consonants) + dice.choice(vowels) for _ in range(3))
        words["".join(syllables)] = None
    return {word: dice.sample(sorted(words), FOLLOWERS) for word in words}


def _make_text(language: dict[str, list[str]], words: int, dice: random.Random) -> str:
    word = dice.choice(sorted(language))
    made = []
    for _ in range(words):
        made.append(word)
        word = dice.choices(language[word], weights=(8, 4, 2, 1))[0]
    return " ".join(made) + "\n"
