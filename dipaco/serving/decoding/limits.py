"""How much one serving loop holds at once, and how it divides its work."""

import dataclasses

from dipaco.errors import BadSetting


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopLimits:
    """Shapes follow from these, so each also decides how many programs are compiled."""

    rows: int = 64  # active requests over all paths: rows of the cache
    rows_per_path: int = 32  # of one path, in one step
    waiting: int = 256  # requests that wait for a row; beyond it `QueueFull`
    steps_per_block: int = 8  # tokens a row makes before others may join and clients get them
    prompt_tokens_per_turn: int = 512  # prefilled, padding included, before the next block
    smallest_slots: int = 64  # of the cache that a step attends to; doubled as rows grow
    # Rows of a step, the rest being padding. On CPU 2 and 4 rows take as long as 8: the products
    # are then bound by reading the parameters.
    rows_per_step: tuple[int, ...] = (1, 8, 16, 32)

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            least = min(value, default=0) if isinstance(value, tuple) else value
            if least < 1:
                raise BadSetting(name=name, value=value, expected="1 or more")

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """`rows_per_step`, cut off at `rows_per_path`."""
        most = self.rows_per_path
        return (*(size for size in self.rows_per_step if size < most), most)
