"""The prompts that every release continues: the heads of a few test documents.

The same ones for every arm and phase, so that texts of different releases can be read side by side.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge, Le

from dipaco.settings import Count, check_values

MOST_PROMPTS = 256  # every release continues each: more would take longer than evaluation


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """Texts by every release, to be read while training goes on: prompts of the run's own domains,
    continued by the path that each is routed to. Changes no module."""

    prompts: Annotated[int, Ge(0), Le(MOST_PROMPTS)] = 0
    """Prompts that every release continues; 0 = none. Each is the first `data.prefix_tokens` tokens
    of a test document: one for each domain, the largest first, before any has two."""
    tokens: Count = 32
    """Tokens that are made for each prompt, at most; fewer where the text ends by itself."""

    def __post_init__(self):
        check_values(self, "samples")


def prompt_rows(domains: Sequence[int], most: int) -> list[int]:
    """Chooses prompts among the evaluated documents.

    Args:
      domains: of each document, by number.
      most: prompts.

    Returns:
      `most` indices into `domains`, or all of them where there are fewer. Every domain has one
      before any has two, the one with most documents first (of equal ones that with the lower
      number). Those of a domain lie evenly in it, a single one in the middle: the first document of
      a domain is often a licence or a title page.
    """
    rows: dict[int, list[int]] = {}
    for row, domain in enumerate(domains):
        rows.setdefault(domain, []).append(row)
    largest = sorted(rows, key=lambda domain: (-len(rows[domain]), domain))
    turns = [  # A domain takes part in as many turns as it has documents.
        (turn, domain)
        for turn in range(min(most, max(map(len, rows.values()), default=0)))
        for domain in largest
        if turn < len(rows[domain])
    ][:most]
    counts = {domain: sum(own == domain for _, own in turns) for domain in largest}
    return [
        rows[domain][(2 * turn + 1) * len(rows[domain]) // (2 * counts[domain])]
        for turn, domain in turns
    ]
