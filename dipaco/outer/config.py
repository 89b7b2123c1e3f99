"""Settings of the outer optimisation."""

import dataclasses
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt

from dipaco.errors import BadSetting
from dipaco.settings import Natural, NotNegative, Positive, check_values

VocabularyRows = Literal["documents", "holders"]  # vocabulary.py
CodecName = Literal["none", "bfloat16", "int8", "int4", "sparse2", "turns2"]  # codecs/
CODECS = get_args(CodecName)
PARTLY = ("sparse2", "turns2")  # what sends few values of a contribution


@dataclasses.dataclass(frozen=True, kw_only=True)
class OuterSettings:
    """How modules are updated between phases."""

    learning_rate: Positive = 0.7
    """Rate of the outer step, times the mean outer gradient; constant (DiPaCo section 4, as
    DiLoCo)."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Share of its velocity that a module keeps from phase to phase, Nesterov's (DiPaCo section 4,
    as DiLoCo); 0 = none."""
    rescale_by_fan_in: bool = True
    """Whether the mean is multiplied by the root of the module's fan-in, the number of paths
    through it (DiPaCo section 2.7)."""
    weigh_by_documents: bool = True
    """Whether paths count by the documents of their shards (DiPaCo section 2.7); false = all the
    same."""
    vocabulary_rows: VocabularyRows = "documents"
    """How a token's rows of embedding and head are averaged: `documents` = as all else, the
    paper's; `holders` = by how often each path's shard has the token."""
    codec: CodecName = "none"
    """How contributions travel: `none` = as float32; `bfloat16`, `int8` and `int4` take a half, a
    quarter and an eighth of the bytes, `sparse2` the largest values, with error feedback, and
    `turns2` every value in its turn, a hundredth."""
    sparse_places: Annotated[int, Ge(1), Le(1024), "with more, int4 takes fewer bits"] = 64
    """Of 4,096 values, how many `sparse2` sends, the largest: with 64 a value takes 0.22 bits, with
    128 0.44."""
    turns: Annotated[int, Ge(2), Le(64), "int4 sends all values in each phase"] = 9
    """Phases in which `turns2` sends every value once, in two bits: with 9 a value takes 0.23 bits
    a phase. The last phase, and one before an alternation, send all. Until then a path trains on
    with what it has not sent, and modules, which are what is evaluated, are behind it."""
    path_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Path sampling (DiPaCo section 3): share of the paths that take part in a phase, drawn by seed
    and phase; weights and fan-in count only these."""
    quorum: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of a phase's contributions after which a module may step, once the grace is over; late
    ones join its next step. Which are late depends on timing, so digests differ between runs. 1 =
    all are waited for."""
    grace_seconds: NotNegative = 60.0
    """Seconds for which the others are still waited for when the quorum is reached."""
    delay: Natural = 0
    """Inner steps that a path goes on with, from its own parameters, while its contributions
    travel; only then does it take the modules that stepped (Streaming DiLoCo, arXiv 2501.18512,
    section 2.3). 0 = it waits for them."""
    delay_merge: Annotated[float, Ge(0), Lt(1)] = 0.5
    """Share of its own parameters that a path keeps when it takes modules late (Streaming DiLoCo's
    alpha); 0 = it goes on from the modules alone, as it must with `sparse2`."""
    synchronous: bool = False
    """Whether gradients are averaged per module at every inner step, with one AdamW per module and
    no outer step (DiPaCo section 4.5, for comparison). Rate, momentum and rescaling then have no
    effect."""

    def __post_init__(self):
        check_values(self, "outer")
        self._check_partly_sent()

    def _check_partly_sent(self) -> None:
        """Refuses what does not go with codecs that send few values at a time."""
        if self.codec not in PARTLY:
            return
        beside = f"beside `outer.codec={self.codec}`"
        if self.momentum > 0:
            raise BadSetting(
                name="outer.momentum",
                value=self.momentum,
                expected=f"0 {beside}, with `outer.learning_rate=1.0`: what is not sent at once is "
                "momentum already",
            )
        if self.codec == "sparse2" and self.delay and self.delay_merge:
            raise BadSetting(
                name="outer.delay_merge",
                value=self.delay_merge,
                expected=f"0 {beside} and `outer.delay`: what a path keeps of its own is in its "
                "next contribution, and what was not sent of it would be added once more",
            )
        own = {"delay": 0, "path_share": 1.0}
        for name, off in own.items():
            if self.codec == "turns2" and getattr(self, name) != off:
                raise BadSetting(
                    name=f"outer.{name}",
                    value=getattr(self, name),
                    expected=f"{off} {beside}: each path keeps what it has not sent in its own "
                    "parameters, and sends all of it in the last phase",
                )
