"""`--memory-fraction`: what several processes that share a GPU take of it, each."""

from dipaco.errors import BadSetting


def check_memory_fraction(fraction: float | None) -> None:
    """Raises `BadSetting`."""
    if fraction is not None and not 0 < fraction <= 1:
        raise BadSetting(
            name="--memory-fraction", value=fraction, expected="above 0, and at most 1"
        )
