"""Limits of one serving loop: how much it holds at once, and how it divides its work."""

import dataclasses
from collections.abc import Sequence

from dipaco.errors import BadSetting
from dipaco.model.config import ModelConfig
from dipaco.serving.errors import ContextTooLong, EmptyPrompt


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopLimits:
    """Shapes follow from these, so each also decides how many programs are compiled."""

    rows: int = 64  # active requests over all paths: rows of the cache
    rows_per_path: int = 64  # rows of one path in one step
    rows_per_client: int | None = None  # rows of one client. None = all, while no other wants them
    waiting: int = 256  # requests that wait for a row
    steps_per_block: int = 8  # tokens a row makes before others may join and clients get them
    prompt_tokens_per_iteration: int = 512  # prefilled, padding included, before the next block
    smallest_slots: int = 64  # slots of the cache that a step attends to. Doubled as rows grow
    # Rows of a step, the rest being padding. On CPU 2 and 4 rows take as long as 8: the products
    # are then bound by reading the parameters.
    rows_per_step: tuple[int, ...] = (1, 8, 16, 32, 64, 128)

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            least = min(value, default=0) if isinstance(value, tuple) else value
            if least is not None and least < 1:
                raise BadSetting(name=name, value=value, expected="1 or more")

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """`rows_per_step`, cut off at `rows_per_path` or, if that is fewer, `rows`."""
        most = min(self.rows_per_path, self.rows)
        return (*(size for size in self.rows_per_step if size < most), most)

    @property
    def mixed_row_sizes(self) -> tuple[int, ...]:
        """Rows of a step for several paths: every second of `rows_per_step`, up to `rows`."""
        if self.rows == 1:
            return ()
        return (*(size for size in self.rows_per_step[1::2] if size < self.rows), self.rows)

    @property
    def gathered_rows(self) -> int:
        """Rows of the cache, padding included, that are gathered for steps at one time."""
        return self.rows


def check_fits(config: ModelConfig, prompt_ids: Sequence[int]) -> None:
    """Raises `EmptyPrompt`, or `ContextTooLong` if the prompt leaves no room for a token."""
    if not len(prompt_ids):
        raise EmptyPrompt
    if len(prompt_ids) >= config.max_length:
        raise ContextTooLong(
            num_tokens=len(prompt_ids),
            where="the context (`max_length`)",
            limit=config.max_length,
            remedy="Shorten it: at least one more token must fit.",
        )
