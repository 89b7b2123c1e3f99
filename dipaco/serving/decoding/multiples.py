"""Limits on the `multipleOf` of a JSON schema.

The grammar keeps a state for each remainder that a number may have, to know which digits may come
next. They are made while it compiles, without a limit: 10,000 take 40 ms and 5 MB, ten million more
than 20 s and 400 MB. A number may have to obey several of them, by `allOf`, `$ref` and others. Then
their least common multiple counts. The states of different numbers are added.
"""

import json
import math
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

MOST = 10_000
KEY = "multipleOf"
# Any other is as it would be without these. (With more decimals, the compiler's products of two
# multiples would no longer fit its 32 bits.)
FREE = frozenset(Decimal(each) for each in ("1", "0.1", "0.01", "0.001", "0.0001"))
# Digits before and after the point. Beyond it, a number is too large or too fine in any case.
DIGITS = 9
REFERENCE = "$ref"
# Their values are no schemas, unless a `$ref` says so.
VALUES = frozenset(("const", "enum", "default", "examples", "$defs", "definitions"))
NAMED = frozenset(("properties", "patternProperties"))  # schemas by the names of properties
# The schemas in these are of other numbers than those beside them and in each other. Those in any
# other keyword may be of the same ones, at any depth: of `allOf`, two may have the same property.
APART = frozenset(("properties", "additionalProperties", "items", "prefixItems", "additionalItems"))

Multiples = dict[Decimal, None]  # other than 0 and the free ones, each once, in their order


class _Object(NamedTuple):
    """One of JSON, with the keys that it has twice."""

    pairs: list[tuple[str, object]]


def problem_of_multiples(schema: str) -> str | None:
    """A sentence about what is wrong with the `multipleOf` of a schema (JSON), or None.

    Multiples that may hold for one number are counted together, in units of the smallest decimal
    place among them. 1 and its decimals (0.01) cost nothing. In a schema with a `$ref`, all are
    counted together.

    Raises:
      ValueError: it is not JSON, or has a number with an exponent that no decimal has.
      RecursionError: it is too deep.
    """
    if KEY not in schema and "\\u" not in schema:
        return None
    every: Multiples = {}
    has_reference = False

    def read(pairs: list[tuple[str, object]]) -> _Object:
        nonlocal has_reference
        every.update(_own(pairs))
        has_reference |= any(key == REFERENCE for key, _ in pairs)
        return _Object(pairs)

    document = json.loads(schema, object_pairs_hook=read, parse_int=Decimal, parse_float=_decimal)
    problem = _problem_of([every])
    if problem is None or has_reference:
        return problem
    return _problem_of(_numbers(document))


def _decimal(written: str) -> Decimal:
    try:
        return Decimal(written)
    except InvalidOperation as error:
        number = written if len(written) <= 40 else f"{written[:40]}..."
        raise ValueError(f"the number {number} has too large an exponent") from error


def _own(pairs: list[tuple[str, object]]) -> Multiples:
    """Those of an object itself, if it is a schema."""
    values = (value for key, value in pairs if key == KEY and isinstance(value, Decimal))
    return {value: None for value in values if value and value not in FREE}


def _numbers(schema: object) -> list[Multiples]:
    """The multiples that may hold for each number that a schema without a `$ref` describes."""
    if not isinstance(schema, _Object):
        return []
    numbers, may_be_one = [_own(schema.pairs)], False
    for key, value in schema.pairs:
        if key not in VALUES:
            within = [each for part in _parts(key, value) for each in _numbers(part)]
            numbers += within
            may_be_one |= bool(within) and key not in APART
    if may_be_one:
        numbers = [{value: None for number in numbers for value in number}]
    return [number for number in numbers if number]


def _parts(key: str, value: object) -> list[object]:
    """The schemas in a keyword, and what else there is."""
    if key in NAMED and isinstance(value, _Object):
        return [schema for _, schema in value.pairs]
    return value if isinstance(value, list) else [value]


def _problem_of(numbers: Iterable[Multiples]) -> str | None:
    """A sentence about the numbers. Equal multiples count once: so do the grammar's states."""
    states = 0
    for number in {frozenset(number): number for number in numbers}.values():
        for value in number:
            if abs(value.adjusted()) > DIGITS or len(value.as_tuple().digits) > 2 * DIGITS:
                return _problem(value)
        values = [(value, value.normalize()) for value in number]
        decimals = max((_decimals(value) for _, value in values), default=0)
        together = 1
        for written, value in values:
            together = math.lcm(together, int(value * 10**decimals))
            if states + together > MOST:
                return _problem(written)
        states += together
    return None


def _decimals(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "JSON has no infinite numbers"
    return max(0, -exponent)


def _problem(value: Decimal) -> str:
    written = f"{value:f}" if abs(value.adjusted()) <= DIGITS else f"{value:.3g}"
    return (
        f"with `{KEY}` {written} its numbers may have more than {MOST:,} remainders: those of one "
        f"number are the least common multiple of the `{KEY}` that may hold for it (with a "
        f"`{REFERENCE}`, of all), in units of their last decimal place, and those of different "
        "numbers are added. Leave it out, and check the number yourself"
    )
