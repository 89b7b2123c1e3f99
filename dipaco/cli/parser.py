"""A parser of the command line that says which option may have been meant."""

import argparse
import difflib

MOST_MEANT = 2


class Parser(argparse.ArgumentParser):
    """As argparse's; of what it does not know, it names the nearest option that it has. Parsers of
    verbs are of this kind too, so the options of the verb are compared.
    """

    def parse_known_args(self, args=None, namespace=None):
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._problem(unknown[0].partition("=")[0]))
        return namespace, unknown

    def _problem(self, word: str) -> str:
        if not word.startswith("-"):
            return f"`{word}` is one word too many. Put a text with blanks in quotes"
        known = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(word, known, n=MOST_MEANT)
        if not near:
            return f"there is no option `{word}`; `{self.prog} --help` lists all"
        return f"there is no option `{word}`. Did you mean {' or '.join(f'`{n}`' for n in near)}?"
