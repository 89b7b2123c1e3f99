"""Which documents are scored, and how one path scores them: for `score`, `label`, `check` and
`evaluate`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dipaco.data.corpus import TokenReader
from dipaco.data.first_tokens import first_tokens
from dipaco.evaluation.perplexity import score_documents
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree


def validation(run: Run, arm: str, phase: int) -> tuple[np.ndarray, np.ndarray]:
    """The documents that are evaluated and the path of each in this arm: int64 [N], int32 [N]."""
    valid = load_tree(run.objects, run.routing_of(arm, phase).artifacts["valid"])
    is_routed = run.plan.arm(arm).is_routed
    return valid["documents"], valid["paths"] if is_routed else np.zeros_like(valid["paths"])


def scores_every_path(run: Run, arm: str, phase: int) -> bool:
    """Whether every document is scored under every path, to find the best path of each."""
    is_last = phase == run.plan.arm(arm).phases
    return is_last and run.plan.arm(arm).is_routed and run.config.evaluation.best_path


def score_under_path(
    run: Run,
    parts: Any,
    tokens_of: TokenReader,
    documents: np.ndarray,
    score: Callable[..., tuple[np.ndarray, ...]] = score_documents,
) -> tuple[np.ndarray, ...]:
    """Summed log-likelihood of documents under a path, and how many tokens are counted; by
    `score_tokens` also those of each token.
    """
    tokens, lengths = first_tokens(tokens_of, documents, run.config.data.length)
    return score(
        run.programs.log_likelihoods(parts),
        tokens,
        lengths,
        prefix_tokens=run.config.data.prefix_tokens,
        batch_size=run.config.evaluation.batch_size,
    )
