"""Settings of the outer optimisation."""

import dataclasses
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt

from dipaco.settings import Natural, NotNegative, Positive, check_values

VocabularyRows = Literal["documents", "holders"]  # vocabulary.py
CodecName = Literal["none", "bfloat16", "int8", "int4", "int2"]  # codecs/
CODECS = get_args(CodecName)


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
    """Compression of contributions: `none` = float32. `bfloat16`, `int8`, `int4` and `int2` take a
    half, a quarter, an eighth and a sixteenth of the bytes. What a message cannot hold is in the
    next one (error feedback)."""
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
    alpha). 0 = it goes on from the modules alone."""
    synchronous: bool = False
    """True: gradients are averaged per module at every inner step, with one AdamW per module and no
    outer step (DiPaCo section 4.5, for comparison). Rate, momentum and rescaling then have no
    effect."""

    def __post_init__(self):
        check_values(self, "outer")
