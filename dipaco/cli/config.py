"""Show a config's settings, by the names that `--set` takes, and the sizes that follow. Explain a
setting. Copy a shipped config.

  dipaco config list                             the shipped configs
  dipaco config copy quickstart my.py            your own file, to be edited
  dipaco config show my.py --set inner.steps=50
  dipaco config show my.py --explain inner       explains the settings of `inner` (no name: all)
  dipaco config show --explain inner.steps       the same without values
"""

import argparse
import ast
import os
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.errors import ConfigExists, ConfigMissing
from dipaco.cli.options import CONFIG_HELP, add_set, output_path
from dipaco.shipped import names_like, shipped_files

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.topology import Level

HELP = "show a config's settings and what they are, or copy a shipped one"
INDENT = "    "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print every setting and the sizes that follow")
    show.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help=CONFIG_HELP)
    how = show.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="the settings as JSON")
    how.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="NAME",
        help="what a setting, a group (`inner`) or everything is: type, default, a sentence",
    )
    add_set(show)
    actions.add_parser("list", help="print the configs that are shipped, and what each is")
    copy = actions.add_parser("copy", help="write a shipped config into a file of your own")
    copy.add_argument("name", metavar="NAME", help="as `dipaco config list` has it")
    copy.add_argument("file", type=_target, metavar="FILE", help="a new file, or a folder for it")


def _target(text: str) -> str:
    """A text, since a `Path` forgets the slash of a folder. Raises `OutputNotLocal`."""
    output_path(text)
    return os.path.expanduser(text)


def run(options: argparse.Namespace) -> int:
    return {"show": _show, "list": _list, "copy": _copy}[options.action](options)


def _list(options: argparse.Namespace) -> int:
    from dipaco.observe.terminal import terminal_width

    sweeps = {name for name, file in shipped_files().items() if _is_sweep(file)}
    configs = shipped_files().keys() - sweeps
    for verb, what, names in (("train", "configs", configs), ("ablate", "sweeps", sweeps)):
        print(f"{what}, for `dipaco {verb} NAME --run DIR`:")
        for name in sorted(names):
            doc = ast.get_docstring(ast.parse(shipped_files()[name].read_bytes())) or ""
            sentence = " ".join(doc.partition("\n\n")[0].split())
            line = f"  {name:<20} {sentence}"
            print(textwrap.fill(line, terminal_width(), subsequent_indent=" " * 23))
    return 0


def _is_sweep(file: Path) -> bool:
    """True if the file has rows (`sweep()`). A config has `run()`."""
    tops = ast.parse(file.read_bytes()).body
    return any(isinstance(each, ast.FunctionDef) and each.name == "sweep" for each in tops)


def _copy(options: argparse.Namespace) -> int:
    from dipaco.errors import BadConfigFile
    from dipaco.files import write_new

    found = shipped_files().get(options.name)
    if found is None:
        problem = f"no shipped config has this name: {names_like(Path(options.name))}"
        raise BadConfigFile(file=options.name, problem=problem)
    file = Path(options.file)
    if file.is_dir() or options.file.endswith(("/", os.sep)):
        file /= f"{options.name}.py"
    if not write_new(file, found.read_bytes()):
        raise ConfigExists(file=file)
    verb = "ablate" if _is_sweep(found) else "train"
    print(f"Written: {file}. Edit it, then: dipaco {verb} {shlex.quote(str(file))} --run DIR")
    return 0


def _show(options: argparse.Namespace) -> int:
    from dipaco.model.config import num_parameters, part_parameters
    from dipaco.overrides import load_config, settings
    from dipaco.plural import counted

    if options.config is None:
        if options.explain is None or options.overrides:
            raise ConfigMissing
        _explain(None, options.explain)
        return 0
    config = load_config(options.config, options.overrides)
    if options.json:
        print(config.to_json())
        return 0
    if options.explain is not None:
        _explain(config, options.explain)
        return 0
    values = settings(config)
    for name, value in values.items():
        if name != "topology.levels":
            print(f"{name} = {value}")
    topology = config.topology
    for level in topology.levels:
        print(_in_words(level))
    total = sum(topology.module_sizes(part_parameters(config.model)).values())
    print(
        f"{counted(topology.num_paths, 'path')} of {num_parameters(config.model):,} parameters, "
        f"{counted(len(topology.modules), 'module')} of {total:,} parameters in all"
    )
    tokens_per_step = config.inner.batch_size * config.data.length
    for arm in (config.plan.base, *config.plan.arms):
        tokens = arm.path_steps * tokens_per_step
        print(
            f"arm {arm.name}: {arm.total_steps:,} steps a path in {arm.phases} phases, "
            f"{tokens:,} tokens"
        )
    print("What a setting is: the same command with `--explain NAME`.")
    return 0


def _in_words(level: "Level") -> str:
    experts = {0: "one per path", 1: "shared"}.get(level.experts, f"{level.experts} experts")
    return f"level {level.name}: {experts}, owns {', '.join(level.parts) or 'no part'}"


def _explain(config: "RunConfig | None", name: str) -> None:
    """Prints what `name` is, a setting or a group, and its value in the config if there is one."""
    from dipaco.config import RunConfig
    from dipaco.observe.terminal import terminal_width
    from dipaco.overrides import settings
    from dipaco.settings import describe_kind, find, value_in_words

    values, width = {} if config is None else settings(config), terminal_width()

    def say(text: str, indent: str) -> None:
        print(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent))

    for group in find(RunConfig, name):
        if group.name:
            print(f"[{group.name}]")
            say(group.sentence, "")
            print()
        for setting in group.settings:
            has_value = setting.name in values and setting.name != "topology.levels"
            value = f" = {value_in_words(values[setting.name])}" if has_value else ""
            print(f"{setting.name}{value}")
            if config is not None and setting.name == "topology":
                for level in config.topology.levels:
                    say(_in_words(level), INDENT)
            say(describe_kind(setting), INDENT)
            say(setting.sentence, INDENT)
            print()
