"""Completion of verbs and options for a shell.

  eval "$(dipaco completion bash)"            in ~/.bashrc
  dipaco completion zsh > ~/.zfunc/_dipaco    a folder of zsh's `fpath`

Needs the extra `completion`.
"""

import argparse

HELP = "print completion for bash or zsh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(options: argparse.Namespace) -> int:
    from dipaco.errors import needs_extra

    with needs_extra("completion", feature="`dipaco completion`"):
        import shtab
    print(shtab.complete(options.completed, shell=options.shell))
    return 0
