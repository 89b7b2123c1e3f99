"""Small language models that route, one for each path (`routing.kind` = "small_models").

They learn the first tokens of the training documents by balanced EM (`routing.balanced_em`), from
the clusters of k-means on the base model's features. Their log-likelihoods of a document's first
tokens then stand where other routers read features: the likeliest small model names the path.
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.data.shards import hold_out
from dipaco.data.windows import first_tokens
from dipaco.evaluation.perplexity import score_tokens
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import learning_rates, make_optimizer
from dipaco.inner.state import PathState, fresh
from dipaco.inner.step import make_step, path_loss
from dipaco.model.config import ModelConfig, flops_per_token
from dipaco.model.lm import log_likelihoods
from dipaco.model.spec import initialise
from dipaco.routing.balanced_em import balanced_em
from dipaco.routing.router import Router, linear_router
from dipaco.stopping import noting_progress

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.runs.run import Run

BATCH_DOCUMENTS = 256  # scored at once

SmallModels = dict[str, Any]  # path, six digits -> parameters


class SmallFit(NamedTuple):
    """Sizes of the small models and of their training."""

    rounds: int  # rounds of balanced EM, each of which shares documents out again
    steps: int  # optimiser steps of each model in a round
    batch_size: int  # documents in one step
    learning_rate: float  # AdamW's peak, with a cosine over all rounds
    d_model: int
    num_layers: int
    num_heads: int


# The models read a few first tokens and only tell paths apart, whatever the size of a path. All
# published figures of this router were made with these numbers.
FIT = SmallFit(4, 100, batch_size=32, learning_rate=1e-2, d_model=32, num_layers=1, num_heads=2)


class FittedModels(NamedTuple):
    """The small models, their router, and the paths of the training documents."""

    models: SmallModels
    router: Router  # argmax of the scores: a prompt pays no prices
    choices_NK: np.ndarray  # int32 [N, overlap], under prices that bound each path's documents


def small_config(model: ModelConfig, length: int) -> ModelConfig:
    """Sizes of a small model, of the vocabulary of a path."""
    return ModelConfig(
        vocab_size=model.vocab_size,
        d_model=FIT.d_model,
        num_layers=FIT.num_layers,
        num_heads=FIT.num_heads,
        d_ff=2 * FIT.d_model,
        max_length=length,
        tied_head=True,
    )


def flops_of_fit(config: "RunConfig", documents: int) -> int:
    """Floating-point operations of the fit: what the models learn from, and what they score after
    each round.
    """
    tokens = config.data.prefix_tokens
    small = small_config(config.model, tokens)
    learned = FIT.steps * FIT.batch_size * flops_per_token(small, tokens)
    scored = documents * flops_per_token(small, tokens, training=False)
    return config.num_paths * FIT.rounds * tokens * (learned + scored)


def fit_small_models(run: "Run", first_N: np.ndarray) -> FittedModels:
    """Fits the small models of a run to the first tokens of its training documents. What is held
    out for early stopping trains none of them, and gets a path all the same.

    Args:
      first_N: the path of each training document in the first round.

    Raises:
      TooFewTrainingDocuments: fewer documents than paths.
    """
    config, routing = run.config, run.config.routing
    num_paths, total = config.num_paths, FIT.rounds * FIT.steps
    prefix_tokens = config.data.prefix_tokens
    documents = run.corpus.documents("train")
    tokens_NT, lengths_N = first_tokens(run.corpus, documents, prefix_tokens)
    trained, _ = hold_out(run.corpus, documents, config.inner.hold_out, shortest=prefix_tokens + 1)
    trains_N = np.isin(documents, trained)
    model = small_config(config.model, prefix_tokens)
    inner = InnerSettings(
        batch_size=FIT.batch_size,
        learning_rate=FIT.learning_rate,
        warmup_steps=min(10, total - 1),
        accumulation_steps=1,
    )
    step = noting_progress(make_step(path_loss(model, inner), inner))
    parts = jax.device_get(initialise(model, jax.random.key(run.seed_for("small_models"))))
    first = jax.device_get(fresh(parts, make_optimizer(inner)))

    def learn(states: list[PathState], path_N: np.ndarray, each: int) -> list[PathState]:
        rates = learning_rates(inner, total, each * FIT.steps, FIT.steps)
        after = []
        for path, state in enumerate(states):
            random = np.random.default_rng(run.seed_for("small_models", each, path))
            mine = np.flatnonzero((path_N == path) & trains_N)
            state = jax.device_put(jax.tree.map(np.array, state))
            for rate in rates if len(mine) else ():
                rows = mine[random.integers(len(mine), size=FIT.batch_size)]
                state, _ = step(state, _batch(tokens_NT[rows], lengths_N[rows]), rate)
            after.append(jax.device_get(state))
        return after

    def score(states: list[PathState]) -> np.ndarray:
        models = {f"{path:06d}": state.parts for path, state in enumerate(states)}
        return small_scores(model, models, tokens_NT, lengths_N).astype(np.float64)

    fitted = balanced_em(
        [first] * num_paths,
        learn,
        score,
        first_N,
        num_paths,
        rounds=FIT.rounds,
        floor=routing.floor,
        capacity=routing.capacity,
    )
    order_NP = np.argsort(fitted.price_P - fitted.score_NP, axis=1, kind="stable")
    return FittedModels(
        models={f"{path:06d}": state.parts for path, state in enumerate(fitted.models)},
        router=linear_router("small_models", np.eye(num_paths, dtype=np.float32)),
        choices_NK=order_NP[:, : routing.overlap].astype(np.int32),
    )


def small_scores(
    model: ModelConfig,
    models: SmallModels,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray,
    batch_size: int = BATCH_DOCUMENTS,
) -> np.ndarray:
    """float32 [N, P]: nats of documents' first tokens but the very first, under each model."""
    scores = [
        score_tokens(
            noting_progress(functools.partial(_log_likelihoods, model, models[name])),
            tokens_NT,
            lengths_N,
            prefix_tokens=tokens_NT.shape[1],
            batch_size=batch_size,
        ).prefixes
        for name in sorted(models)
    ]
    return np.stack(scores, axis=1).astype(np.float32)


_log_likelihoods = jax.jit(log_likelihoods, static_argnames=("config",))


def _batch(tokens_BT: np.ndarray, lengths_B: np.ndarray) -> dict[str, Any]:
    index_T = np.arange(tokens_BT.shape[1], dtype=np.int32)
    return {
        "tokens": tokens_BT,
        "segments": (index_T < lengths_B[:, None]).astype(np.int32),
        "positions": jnp.broadcast_to(index_T, tokens_BT.shape),
    }
