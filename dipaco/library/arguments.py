"""Checks of the values that a caller gives from Python, before they are used."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dipaco.errors import BadSetting, UnknownSetting
from dipaco.settings import plain

if TYPE_CHECKING:
    from dipaco.serving.decoding.sampling import SamplingSettings


def whole_number(name: str, value: Any, least: int, below: int | None = None) -> int:
    """A value as Python's own int. NumPy's integers are accepted.

    Raises:
      BadSetting: it is no whole number, or not in `least` <= value < `below` (None = no limit).
    """
    number = plain(value)
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if is_whole and least <= number and (below is None or number < below):
        return number
    limit = "or more" if below is None else f"to {below - 1}"
    raise BadSetting(name=name, value=value, expected=f"a whole number, {least} {limit}")


def one_text(name: str, value: Any) -> str:
    """The value, if it is a text. Raises `BadSetting` otherwise."""
    if not isinstance(value, str):
        raise BadSetting(name=name, value=value, expected="a text")
    return value


def listed_texts(texts: str | Iterable[str]) -> list[str]:
    """One text, or several, as a list. Raises `BadSetting` for other values."""
    listed = [texts] if isinstance(texts, str) else texts
    listed = list(listed) if isinstance(listed, Iterable) else [listed]
    for each in listed:
        if not isinstance(each, str):
            raise BadSetting(name="texts", value=each, expected="a text, or several")
    return listed


def sampling_of(values: Mapping[str, Any], others: Sequence[str]) -> "SamplingSettings":
    """The settings of sampling from keyword arguments.

    Args:
      values: field of `SamplingSettings` -> value.
      others: names of the caller's other arguments. They are suggested for a misspelt name.

    Raises:
      UnknownSetting: a name is no field.
      BadSetting: a value is of another type, or out of range.
    """
    from dipaco.serving.decoding.sampling import SamplingSettings

    _check_names(values, [field.name for field in dataclasses.fields(SamplingSettings)], others)
    for name, value in values.items():
        if name == "top_k":
            whole_number(name, value, 0)
        elif name != "logit_bias" and not _is_number(value):
            raise BadSetting(name=name, value=value, expected="a number")
        elif name == "logit_bias" and not _are_biases(value):
            raise BadSetting(name=name, value=value, expected="pairs of a token and a number")
    return SamplingSettings(**values)


def _is_number(value: Any) -> bool:
    number = plain(value)
    return isinstance(number, (int, float)) and not isinstance(number, bool)


def _are_biases(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(_is_number, pair))
        for pair in value
    )


def _check_names(given: Iterable[str], known: Sequence[str], others: Sequence[str]) -> None:
    """Raises `UnknownSetting` for an unknown name. Suggests a name of `known` or `others`."""
    for name in given:
        if name not in known:
            known = (*known, *others)
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"Did you mean `{near[0]}`?" if near else f"There are {', '.join(known)}."
            raise UnknownSetting(name=name, hint=f" {meant}")
