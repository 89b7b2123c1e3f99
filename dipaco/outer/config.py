"""Settings of the outer optimisation."""

import dataclasses
import math

from dipaco.errors import BadSetting

VOCABULARY_ROWS = ("documents", "holders")  # vocabulary.py
CODECS = ("none", "bfloat16", "int8")  # compress.py


@dataclasses.dataclass(frozen=True, kw_only=True)
class OuterSettings:
    """How modules are updated between phases."""

    learning_rate: float = 0.7  # DiPaCo section 4, as DiLoCo; constant
    momentum: float = 0.9  # Nesterov
    rescale_by_fan_in: bool = True  # times sqrt(fan-in), DiPaCo 2.7; off = plain mean
    weigh_by_documents: bool = True  # alpha_i = |D_i| / sum |D|, DiPaCo 2.7; off = equal weights
    # How a token's rows of embedding and head are averaged: as all else (the paper's), or by how
    # often each path's shard has the token.
    vocabulary_rows: str = "documents"
    codec: str = "none"  # how contributions travel; bfloat16 and int8 with error feedback
    # Path sampling, DiPaCo section 3: the share of paths that take part in a phase, drawn by seed
    # and phase. Weights and fan-in count only these.
    path_share: float = 1.0
    # Quorum mode: a module may step once this share of a phase's contributions is in and the grace
    # is over; late ones join its next step, see gradient.py. Which paths are late depends on
    # timing, so digests differ between runs. 1 = wait for all.
    quorum: float = 1.0
    grace_seconds: float = 60.0  # counted from when the quorum is reached
    # Gradients are averaged per module at every inner step, with one AdamW per module and no outer
    # step: rate, momentum and rescale are ignored. DiPaCo 4.5, for comparison.
    synchronous: bool = False

    def __post_init__(self):
        if not 0 < self.learning_rate < math.inf:
            raise BadSetting(
                name="outer.learning_rate",
                value=self.learning_rate,
                expected="above 0, and finite",
            )
        if not 0 <= self.momentum < 1:
            raise BadSetting(
                name="outer.momentum",
                value=self.momentum,
                expected="at least 0 and below 1",
            )
        if self.vocabulary_rows not in VOCABULARY_ROWS:
            expected = f"one of {', '.join(VOCABULARY_ROWS)}"
            raise BadSetting(
                name="outer.vocabulary_rows", value=self.vocabulary_rows, expected=expected
            )
        if self.codec not in CODECS:
            expected = f"one of {', '.join(CODECS)}"
            raise BadSetting(name="outer.codec", value=self.codec, expected=expected)
        if not 0 < self.path_share <= 1:
            raise BadSetting(
                name="outer.path_share",
                value=self.path_share,
                expected="above 0 and at most 1 (all paths in every phase)",
            )
        if not 0 < self.quorum <= 1:
            raise BadSetting(
                name="outer.quorum",
                value=self.quorum,
                expected="above 0 and at most 1 (a module waits for all its paths)",
            )
        if not (self.grace_seconds >= 0 and math.isfinite(self.grace_seconds)):
            raise BadSetting(
                name="outer.grace_seconds",
                value=self.grace_seconds,
                expected="a number of seconds, 0 or more",
            )
