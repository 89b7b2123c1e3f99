"""Show the settings of a config, by the names that `--set` takes, and the sizes that follow.

dipaco config show configs/quickstart.py --set inner.steps=50
"""

import argparse
from pathlib import Path

from dipaco.cli.options import add_set

HELP = "show a config's settings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print every setting and the sizes that follow")
    show.add_argument("config", type=Path, metavar="CONFIG", help="a file with a function `run()`")
    show.add_argument("--json", action="store_true", help="the settings as JSON")
    add_set(show)


def run(options: argparse.Namespace) -> int:
    from dipaco.model.config import num_parameters, part_parameters
    from dipaco.overrides import load_config, settings

    config = load_config(options.config, options.overrides)
    if options.json:
        print(config.to_json())
        return 0
    values = settings(config)
    for name, value in values.items():
        if name != "topology.levels":
            print(f"{name} = {value}")
    topology, in_part = config.topology, part_parameters(config.model)
    for level in topology.levels:
        experts = {0: "one per path", 1: "shared"}.get(level.experts, f"{level.experts} experts")
        print(f"level {level.name}: {experts}, owns {', '.join(level.parts) or 'no part'}")
    total = sum(in_part[part] for m in topology.modules for part in topology.parts_of(m))
    print(
        f"{topology.num_paths} paths of {num_parameters(config.model):,} parameters, "
        f"{len(topology.modules)} modules of {total:,} parameters in all"
    )
    tokens_per_step = config.inner.batch_size * config.data.length
    for arm in (config.plan.base, *config.plan.arms):
        tokens = arm.path_steps * tokens_per_step
        print(
            f"arm {arm.name}: {arm.total_steps:,} steps a path in {arm.phases} phases, "
            f"{tokens:,} tokens"
        )
    return 0
