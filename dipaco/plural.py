"""Numbers with their nouns and lists of names, as people say them."""

from collections import Counter
from collections.abc import Iterable, Mapping


def counted(number: int, noun: str) -> str:
    """`1 document`, `2 documents`, `1,200 documents`, for nouns whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def are(number: int) -> str:
    """The verb after so many."""
    return "is" if number == 1 else "are"


def listed(names: Iterable[object], most: int, separator: str = ", ") -> str:
    """The first names, and how many more there are: `a, b and 3 more`."""
    words = list(map(str, names))
    hidden = len(words) - most
    return separator.join(words[:most]) + (f" and {hidden:,} more" if hidden > 0 else "")


def largest(counts: Mapping[str, int], most: int) -> str:
    """The most frequent names, each with its share of all: `a 60%, b 25%`."""
    total = max(sum(counts.values()), 1)
    return ", ".join(f"{name} {n / total:.0%}" for name, n in Counter(counts).most_common(most))
