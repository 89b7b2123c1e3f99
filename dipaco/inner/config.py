"""Settings of the inner optimisation."""

import dataclasses
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from dipaco.errors import BadSetting
from dipaco.settings import Count, Natural, NotNegative, Positive, check_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class InnerSettings:
    """Settings of a path's training between two outer steps. Defaults: the paper's 150 M path."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """`adamw` as in the paper, or `muon` for the matrices of the blocks and AdamW for the rest
    (MuLoCo, arXiv 2505.23725). Muon keeps one value beside each of these, where AdamW keeps two."""
    steps: Count = 150
    """Optimiser steps of a path in a phase (DiPaCo's tau, section 4)."""
    batch_size: Count = 512
    """Rows in one optimiser step (DiPaCo section 4)."""
    accumulation_steps: Count = 1
    """Equal pieces that a batch is split into, one after another, to save memory."""
    rematerialise: bool = False
    """True: activations are computed again in the backward pass, to save memory."""
    loss_chunks: Count = 1
    """Equal pieces that rows are cut into for the logits, to save memory."""
    learning_rate: Positive = 4e-4
    """Peak learning rate (DiPaCo section 4)."""
    warmup_steps: Natural = 1000
    """Steps in which the rate rises linearly from zero to its peak (DiPaCo section 4)."""
    end_fraction: NotNegative = 0.1
    """Share of the peak rate at which the cosine ends."""
    weight_decay: NotNegative = 0.1
    """Decay, times the learning rate. Matrices decay, norms do not (DiPaCo section 4)."""
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Share of AdamW's mean of gradients that a step keeps. Not stated in the paper."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.95
    """Share of AdamW's mean of squared gradients that a step keeps. Not stated in the paper."""
    clip_norm: Positive = 1.0
    """Largest norm of the whole gradient of a step. Longer gradients are scaled down to it. Not
    stated in the paper."""
    hold_out: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Early stopping (DiPaCo section 2.7): share of the texts held out from training, with all of
    their pieces. A path is released as of the phase with the lowest loss on its shard's held-out
    texts. Base and dense models and small models that route do not train on them either, but a base
    model of another run may have. A shard with none of these texts holds out one of its texts,
    which may train other paths and the base model. A shard of few long texts holds out pieces up to
    the share and trains on the others, also of texts that other shards hold out. 0 = off."""
    freeze_absent_tokens: bool = False
    """True: the rows of embedding and head do not move for tokens that the path's shard does not
    have (not in the paper)."""

    def __post_init__(self):
        check_values(self, "inner")
        if self.batch_size % self.accumulation_steps:
            raise BadSetting(
                name="inner.accumulation_steps",
                value=self.accumulation_steps,
                expected=f"a divisor of inner.batch_size ({self.batch_size})",
            )
