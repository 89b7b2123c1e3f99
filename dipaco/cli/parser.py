"""A parser of the command line that says which option may have been meant."""

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Sequence

MOST_MEANT = 2
SETTING = re.compile(r"[a-z]\w*(\.\w+)*=")  # NAME=VALUE


class Parser(argparse.ArgumentParser):
    """As argparse's; of what it does not know, it names the nearest option that it has. Parsers of
    verbs are of this kind too, so the options of the verb are compared.
    """

    def parse_known_args(self, args=None, namespace=None):
        words = sys.argv[1:] if args is None else args
        namespace, unknown = super().parse_known_args(list(_with_each_set(words)), namespace)
        if unknown:
            self.error(self._problem(unknown[0]))
        return namespace, unknown

    def _problem(self, word: str) -> str:
        if SETTING.match(word):
            return f"`{word}` changes a setting: give `--set` before it"
        if not word.startswith("-"):
            return f"`{word}` is one word too many. Put a text with blanks in quotes"
        word = word.partition("=")[0]
        known = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(word, known, n=MOST_MEANT)
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
