"""How many tokens each row makes in a block of steps, and which of them are known beforehand.

A row without a grammar draws one token in each step. With a grammar each token that is drawn must
be known before the next one's mask is, but most tokens are not drawn: the grammar allows one only
(`tools/bench_structured.py` counts them). Such tokens pass the steps as they are, and one is drawn.

Then the row draws ahead, from the same mask, for as many steps as the block has. On the host its
grammar takes those tokens for which the mask was right, and the next block draws the others again,
with the same random numbers: the text does not depend on it. Within a string most tokens leave the
mask as it was; where the last one did, the block has the steps for more.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dipaco.serving.decoding.decode import DRAWN, RESTS
from dipaco.serving.decoding.grammar import GrammarState

# Steps that take as long as what a block costs beside its steps. Measured: 0.3 with 8.4 M
# parameters, 2 to 3 with 0.84 M. Between them little depends on it.
BLOCK_AS_STEPS = 1.0


class BlockPlan(NamedTuple):
    """A block of steps for some rows."""

    given_nB: np.ndarray  # int32, for `decode_block`, padding included
    num_steps: int  # that the block has, 1 to n
    num_tokens: list[int]  # that each row makes, taken or not; padding left out


def plan_block(
    grammars: Sequence[GrammarState | None], num_rows: int, most_steps: int
) -> BlockPlan:
    """Plans a block.

    Args:
      grammars: of the rows; None: it has none.
      num_rows: padding included.
      most_steps: n.
    """
    given_nB = np.full((most_steps, num_rows), DRAWN, np.int32)
    given_nB[:, len(grammars) :] = RESTS  # else each step would draw for padding
    expected = [most_steps] * len(grammars)  # tokens that are likely taken
    num_tokens = [most_steps] * len(grammars)
    for row, grammar in enumerate(grammars):
        if grammar is not None:
            forced = list(itertools.islice(grammar.forced, most_steps))
            given_nB[: len(forced), row] = forced
            if grammar.is_over:
                given_nB[len(forced) :, row] = RESTS
                expected[row] = num_tokens[row] = len(forced)
            elif forced or not grammar.is_steady:
                expected[row] = min(len(forced) + 1, most_steps)
    with_grammar = [most for most, one in zip(expected, grammars, strict=True) if one is not None]
    num_steps = max(with_grammar, default=most_steps)
    if with_grammar:
        num_steps = max(
            range(1, num_steps + 1), key=lambda steps: _tokens_for_time(expected, steps)
        )
    return BlockPlan(given_nB, num_steps, [min(most, num_steps) for most in num_tokens])


def _tokens_for_time(num_tokens: Sequence[int], num_steps: int) -> float:
    """Rows that rest cost as much as others."""
    return sum(min(most, num_steps) for most in num_tokens) / (BLOCK_AS_STEPS + num_steps)
