"""How large the `multipleOf` of a JSON schema may be.

To know which digits may come next in a number, the grammar keeps a state for each remainder that it
may have. They are made while it compiles, without a limit: 10,000 take 40 ms and 5 MB, ten million
more than 20 s and 400 MB. A number may have to obey several of them, by `allOf`, `$ref` and
others, and then their least common multiple counts.
"""

import json
import math
from decimal import Decimal

MOST = 10_000
KEY = "multipleOf"
# Any other is as it would be without these. (With more decimals, the compiler's products of two
# multiples would no longer fit its 32 bits.)
FREE = frozenset(Decimal(each) for each in ("1", "0.1", "0.01", "0.001", "0.0001"))
DIGITS = 9  # before and after the point; with more it is too large or too fine in any case


def problem_of_multiples(schema: str) -> str | None:
    """What is wrong with the `multipleOf` of a schema (JSON); None = nothing.

    All of a schema are counted together, in units of the last decimal place that one of them has;
    1 and its decimals (0.01) cost nothing.

    Raises:
      ValueError: it is not JSON.
      RecursionError: it is too deep.
    """
    if KEY not in schema and "\\u" not in schema:
        return None
    values = [value for value in _values(schema) if value not in FREE]
    for value in values:
        if abs(value.adjusted()) > DIGITS or len(value.as_tuple().digits) > 2 * DIGITS:
            return _problem(value)
    values = [value.normalize() for value in values]
    decimals = max((_decimals(value) for value in values), default=0)
    together = 1
    for value in values:
        together = math.lcm(together, int(value * 10**decimals))
        if together > MOST:
            return _problem(value)
    return None


def _values(schema: str) -> list[Decimal]:
    """Those that are numbers other than 0, each once, in their order."""
    found: dict[Decimal, None] = {}

    def look(pairs: list[tuple[str, object]]) -> None:
        for key, value in pairs:
            if key == KEY and isinstance(value, Decimal) and value:
                found[value] = None

    json.loads(schema, object_pairs_hook=look, parse_int=Decimal, parse_float=Decimal)
    return [*found]


def _decimals(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "JSON has no infinite numbers"
    return max(0, -exponent)


def _problem(value: Decimal) -> str:
    written = f"{value:f}" if abs(value.adjusted()) <= DIGITS else f"{value:.3g}"
    return (
        f"with `{KEY}` {written} the least common multiple of all `{KEY}`, in units of their last "
        f"decimal place, is more than {MOST:,}. Leave it out, and check the number yourself"
    )
