"""What is printed for people to read: as wide as their terminal, broken between words."""

import shutil
import textwrap
from collections.abc import Sequence

PLAIN_WIDTH = 100  # columns, where the output is no terminal


def terminal_width() -> int:
    """In columns."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns


def bullets(sentences: Sequence[str], width: int) -> str:
    """A list, each sentence in lines of at most `width` columns."""
    return "\n".join(
        textwrap.fill(f"- {each}", width, subsequent_indent="  ", break_on_hyphens=False)
        for each in sentences
    )
