"""Text for people to read in a terminal: folded to its width, without control characters."""

import shutil
import sys
import textwrap
from collections.abc import Sequence

PLAIN_WIDTH = 100  # columns if the output is no terminal


def terminal_width() -> int:
    """The terminal's width in columns."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns


def one_line(text: str) -> str:
    """A text without line breaks and other characters that move a cursor. Each run of them and of
    blanks becomes one blank.
    """
    shown = (letter if letter.isprintable() else " " for letter in text)
    return " ".join("".join(shown).split())


def head(text: str, width: int) -> str:
    """`one_line`, cut to its first `width` characters."""
    line = one_line(text)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def tail(text: str, width: int) -> str:
    """`one_line`, cut to its last `width` characters."""
    line = one_line(text)
    return line if len(line) <= width else f"…{line[len(line) - width + 1 :]}"


def visible(text: str) -> str:
    """A text with its line ends and tabs, where other characters that would steer a terminal are
    seen as U+FFFD. A model that is hardly trained may write any.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def bullets(sentences: Sequence[str], width: int) -> str:
    """A list of sentences, folded to lines of at most `width` columns."""
    return "\n".join(
        textwrap.fill(f"- {each}", width, subsequent_indent="  ", break_on_hyphens=False)
        for each in sentences
    )


def folded(text: str, width: int) -> str:
    """A text folded between words to lines of at most `width` columns. Continuation lines are
    indented further than their first line. Blanks inside a line align columns, and stay.
    """
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [
            ""
        ]
    return "\n".join(lines)


def say(text: str) -> None:
    """Prints a text, on a terminal folded and `visible`. A pipe gets it as it is."""
    print(folded(visible(text), terminal_width()) if sys.stdout.isatty() else text, flush=True)
