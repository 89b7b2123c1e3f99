"""A number with its noun, as people say it."""


def counted(number: int, noun: str) -> str:
    """`1 document`, `2 documents`, `1,200 documents`, for nouns whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
