"""The compiled programs with which a run reads text: hidden states and log-likelihoods.

A process that reads a run need not have the devices that train it: with fewer it computes on one.
"""

import dataclasses
import functools
from typing import Any

import jax

from dipaco.config import RunConfig
from dipaco.model.kernels import when_scoring
from dipaco.model.lm import hidden_states, log_likelihoods
from dipaco.model.sharding import parts_shardings
from dipaco.runs.meshes import put, scoring_mesh, whole_everywhere
from dipaco.stopping import noting_progress


class ScoringPrograms:
    """Programs compiled for the model of one config on the devices of this process."""

    def __init__(self, config: RunConfig):
        self._model = when_scoring(config.model)
        self.mesh = scoring_mesh(config)
        rules = dataclasses.asdict(config.mesh.rules)
        self.parts_shardings = parts_shardings(config.model, self.mesh, rules)
        self._everywhere = whole_everywhere(self.mesh)

    def hidden(self, parts: Any) -> Any:
        """tokens [B, T] -> the last block's hidden states [B, T, D] under `parts`."""
        program = functools.partial(self.hidden_program, put(parts, self.parts_shardings))
        return noting_progress(program)

    @functools.cached_property
    def hidden_program(self) -> Any:
        return jax.jit(
            lambda parts, tokens_BT: hidden_states(self._model, parts, tokens_BT),
            out_shardings=self._everywhere,
        )

    def log_likelihoods(self, parts: Any) -> Any:
        """(tokens, segments) [B, T] -> log-likelihood of each token [B, T] under `parts`."""
        program = functools.partial(self.log_likelihood_program, put(parts, self.parts_shardings))
        return noting_progress(program)

    @functools.cached_property
    def log_likelihood_program(self) -> Any:
        program = functools.partial(log_likelihoods, self._model)
        return jax.jit(program, out_shardings=self._everywhere)
