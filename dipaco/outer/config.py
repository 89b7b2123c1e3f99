"""Settings of the outer optimisation."""

import dataclasses
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt

from dipaco.errors import BadSetting
from dipaco.settings import Natural, NotNegative, Positive, check_values

VocabularyRows = Literal["documents", "holders"]  # vocabulary.py
CodecName = Literal["none", "bfloat16", "int8", "int4", "int2", "sparse2", "turns2"]  # codecs/
CODECS = get_args(CodecName)
PARTLY = ("sparse2", "turns2")  # codecs that send few values of a contribution


@dataclasses.dataclass(frozen=True, kw_only=True)
class OuterSettings:
    """Settings of the module updates between phases."""

    learning_rate: Positive = 0.7
    """Rate that multiplies the mean outer gradient. Constant (DiPaCo section 4, as DiLoCo)."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Nesterov momentum: share of its velocity that a module keeps from phase to phase (DiPaCo
    section 4, as DiLoCo). 0 = none."""
    rescale_by_fan_in: bool = True
    """True: the mean is multiplied by the root of the module's fan-in, the number of paths through
    it (DiPaCo section 2.7)."""
    weigh_by_documents: bool = True
    """True: paths are weighted by the documents of their shards (DiPaCo section 2.7). False: all
    paths weigh the same."""
    vocabulary_rows: VocabularyRows = "documents"
    """Weights in the mean of a token's rows of embedding and head: `documents` = as all other
    parameters (the paper's), `holders` = by occurrences of the token in each path's shard."""
    codec: CodecName = "none"
    """Compression of contributions: `none` = float32. `bfloat16`, `int8` and `int4` take a half, a
    quarter and an eighth of the bytes. `sparse2` sends the largest values, with error feedback, and
    `turns2` every value once in several phases, both in about a hundredth."""
    sparse_places: Annotated[int, Ge(1), Le(1024), "with more, int4 takes fewer bits"] = 64
    """Number of values that `sparse2` sends of every 4,096, the largest. With 64 a value takes 0.22
    bits, with 128 0.44."""
    turns: Annotated[int, Ge(2), Le(64), "int4 sends all values in each phase"] = 9
    """Phases in which `turns2` sends every value once, in two bits. With 9 a value takes 0.23 bits
    a phase. The last phase, and one before an alternation, send all values. Until then a path
    trains on with its unsent values, and the modules, which are evaluated, are behind it."""
    path_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Path sampling (DiPaCo section 3): share of the paths that take part in a phase, drawn by seed
    and phase. Weights and fan-in count only these."""
    quorum: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of a phase's contributions after which a module may step, once the grace is over. Late
    contributions join its next step. They depend on timing, so digests differ between runs. 1 =
    the step waits for all."""
    grace_seconds: NotNegative = 60.0
    """Seconds that a step still waits for the other contributions once the quorum is reached."""
    delay: Natural = 0
    """Inner steps that a path goes on with, from its own parameters, while its contributions
    travel. Only then does it take the modules that stepped (Streaming DiLoCo, arXiv 2501.18512,
    section 2.3). 0 = it waits for them."""
    delay_merge: Annotated[float, Ge(0), Lt(1)] = 0.5
    """Share of its own parameters that a path keeps when it takes modules late (Streaming DiLoCo's
    alpha). 0 = it goes on from the modules alone, as it must with `sparse2`."""
    synchronous: bool = False
    """True: gradients are averaged per module at every inner step, with one AdamW per module and no
    outer step (DiPaCo section 4.5, for comparison). Rate, momentum and rescaling then have no
    effect."""

    def __post_init__(self):
        check_values(self, "outer")
        self._check_partly_sent()

    def _check_partly_sent(self) -> None:
        """Refuses settings that do not go with codecs that send few values at a time."""
        if self.codec not in PARTLY:
            return
        beside = f"beside `outer.codec={self.codec}`"
        if self.momentum > 0:
            raise BadSetting(
                name="outer.momentum",
                value=self.momentum,
                expected=f"0 {beside}, with `outer.learning_rate=1.0`: unsent values act as "
                "momentum already",
            )
        if self.codec == "sparse2" and self.delay and self.delay_merge:
            raise BadSetting(
                name="outer.delay_merge",
                value=self.delay_merge,
                expected=f"0 {beside} and `outer.delay`: the share that a path keeps is in its "
                "next contribution, and its unsent values would be added once more",
            )
        own = {"delay": 0, "path_share": 1.0}
        for name, off in own.items():
            if self.codec == "turns2" and getattr(self, name) != off:
                raise BadSetting(
                    name=f"outer.{name}",
                    value=getattr(self, name),
                    expected=f"{off} {beside}: each path keeps its unsent values in its "
                    "parameters, and sends all of them in the last phase",
                )
