"""`dipaco.run` of the tiny run with rules of its own, as a process that may be killed."""

import importlib
from pathlib import Path

import dipaco


def main(_: Path, *, run: str, rules: dict[str, str]) -> int:
    """`rules`: `module:function` by the field of `Rules`."""
    functions = {}
    for kind, name in rules.items():
        module, function = name.split(":")
        functions[kind] = getattr(importlib.import_module(module), function)
    dipaco.run("toy", run, progress=False, rules=dipaco.Rules(**functions))
    return 0
