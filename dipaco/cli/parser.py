"""A parser of the command line that says which option may have been meant."""

import argparse
import difflib
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

MOST_MEANT = 2
LIKE = 0.7  # least similarity, of 1, of a name that may have been meant
FEW_CHOICES = 6
DEEPEST_COMMAND = 4  # an indented line of a description is a command up to here, then its meaning
SETTING = re.compile(r"[a-z]\w*(\.\w+)*=")  # NAME=VALUE


class HelpFormatter(argparse.HelpFormatter):
    """argparse's formatter. A description keeps its paragraphs, and each of its indented lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled, paragraph = [], []
        for line in [*text.strip().splitlines(), ""]:
            if line and not line.startswith(" "):
                paragraph.append(line)
                continue
            filled += textwrap.wrap(" ".join(paragraph), width, break_on_hyphens=False)
            paragraph = []
            depth = len(line) - len(line.lstrip())
            deeper = " " * (depth if depth > DEEPEST_COMMAND else depth + 4)
            filled += textwrap.wrap(
                line, width, subsequent_indent=deeper, break_on_hyphens=False
            ) or [""]
        return "\n".join(filled).rstrip()


def path_given(text: str) -> Path:
    """A path on the command line. No shell puts the home into `--out=~/x`."""
    return Path(os.path.expanduser(text))


class Parser(argparse.ArgumentParser):
    """argparse's parser, which names the option nearest to an unknown one. Parsers of verbs are of
    this kind too, so the options of the verb are compared.
    """

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **{"formatter_class": HelpFormatter, **settings})
        self.register("type", Path, path_given)  # whichever option has `type=Path`

    def parse_known_args(self, args=None, namespace=None):
        self._words = list(_with_each_set(sys.argv[1:] if args is None else args))
        namespace, unknown = super().parse_known_args(self._words, namespace)
        if unknown:
            self.error(self._problem(unknown[0]))
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """argparse's error. If a required option is missing, an unknown one may be meant."""
        known = [option for action in self._actions for option in action.option_strings]
        for word in getattr(self, "_words", ()):
            name = word.partition("=")[0]
            is_known = any(option.startswith(name) for option in known)
            if message.startswith("the following") and name.startswith("--") and not is_known:
                message = self._problem(word)
                break
        first = (getattr(self, "_words", None) or ["-"])[0]
        takes_words = any(not action.option_strings for action in self._actions)
        if message.endswith("required: --run") and not (takes_words or first.startswith("-")):
            message = f"the run is given by `--run`: {self.prog} --run {shlex.quote(first)}"
        super().error(message)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """argparse's check, whose error names the nearest choice rather than many."""
        choices = list(action.choices or ())
        if action.choices is None or value in choices:
            return
        near = difflib.get_close_matches(str(value), map(str, choices), n=1)
        if near:
            says = f"Did you mean `{near[0]}`?"
        elif len(choices) <= FEW_CHOICES:
            says = f"Expected {' or '.join(map(str, choices))}."
        else:
            says = f"`{self.prog} --help` lists all."
        raise argparse.ArgumentError(action, f"there is no `{value}`. {says}")

    def _problem(self, word: str) -> str:
        if SETTING.match(word):
            return f"`{word}` changes a setting: give `--set` before it"
        if not word.startswith("-"):
            return f"`{word}` is one word too many. Put a text with blanks in quotes"
        word = word.partition("=")[0]
        known = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(word, known, n=MOST_MEANT, cutoff=LIKE)
        if not near:
            return f"there is no option `{word}`; `{self.prog} --help` lists all"
        return f"there is no option `{word}`. Did you mean {' or '.join(f'`{n}`' for n in near)}?"


def _with_each_set(words: Sequence[str]) -> Iterator[str]:
    """`--set A=1 B=2` is `--set A=1 --set B=2`. A word that is no setting is left to others."""
    is_set = False
    for number, word in enumerate(words):
        if is_set and words[number - 1] != "--set" and SETTING.match(word):
            yield "--set"
        yield word
        is_set = word == "--set" or (is_set and bool(SETTING.match(word)))
