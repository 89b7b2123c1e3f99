"""Settings of the inner optimisation."""

import dataclasses
import math

from dipaco.errors import BadSetting

STACKINGS = ("map", "vmap")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InnerSettings:
    """How a path trains between two outer steps. Defaults: the paper's 150 M path."""

    steps: int = 150  # tau, optimiser steps in a phase; DiPaCo section 4
    batch_size: int = 512  # rows per optimiser step
    accumulation_steps: int = 1  # equal pieces that a batch is split into, to save memory
    rematerialise: bool = False  # recompute activations in the backward pass, to save memory
    loss_chunks: int = 1  # equal pieces that rows are cut into for the logits, to save memory
    stacked_paths: int = 1  # how many small paths train in one program
    stacking: str = "map"  # "map" = same bits as one by one; "vmap" = faster on accelerators
    learning_rate: float = 4e-4  # peak
    warmup_steps: int = 1000  # linear, from zero
    # Linear warm-up after an alternation gave a path other documents; 0 = its schedule goes on.
    rewarm_steps: int = 0
    end_fraction: float = 0.1  # the cosine ends at this fraction of the peak
    weight_decay: float = 0.1  # on matrices; not on norms
    beta1: float = 0.9  # not stated in the paper
    beta2: float = 0.95  # not stated in the paper
    epsilon: float = 1e-8
    clip_norm: float = 1.0  # of the whole gradient; not stated in the paper
    # Early stopping, DiPaCo 2.7: the share of each shard held out from training; a path is released
    # as it was at the phase with the lowest loss on it. 0 = off.
    hold_out: float = 0.0

    def __post_init__(self):
        for name in (
            "steps",
            "batch_size",
            "accumulation_steps",
            "loss_chunks",
            "stacked_paths",
        ):
            if getattr(self, name) < 1:
                raise BadSetting(
                    name=f"inner.{name}", value=getattr(self, name), expected="1 or more"
                )
        for name in ("learning_rate", "epsilon", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadSetting(
                    name=f"inner.{name}",
                    value=getattr(self, name),
                    expected="above 0, and finite",
                )
        for name in ("warmup_steps", "rewarm_steps", "end_fraction", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadSetting(
                    name=f"inner.{name}",
                    value=getattr(self, name),
                    expected="0 or more, and finite",
                )
        for name in ("beta1", "beta2", "hold_out"):
            if not 0 <= getattr(self, name) < 1:
                raise BadSetting(
                    name=f"inner.{name}",
                    value=getattr(self, name),
                    expected="at least 0 and below 1",
                )
        if self.batch_size % self.accumulation_steps:
            raise BadSetting(
                name="inner.accumulation_steps",
                value=self.accumulation_steps,
                expected=f"a divisor of inner.batch_size ({self.batch_size})",
            )
        if self.stacking not in STACKINGS:
            raise BadSetting(
                name="inner.stacking",
                value=self.stacking,
                expected=f"one of {', '.join(STACKINGS)}",
            )
