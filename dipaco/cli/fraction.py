"""`--memory-fraction`: what several processes that share a GPU take of it, each."""

from dipaco.errors import BadCount


def check_memory_fraction(fraction: float | None) -> None:
    """Raises `BadCount`."""
    if fraction is not None and not 0 < fraction <= 1:
        raise BadCount(
            option="--memory-fraction", given=fraction, expected="above 0, and at most 1"
        )
