"""Begin a run without working on it: its config, and the model it starts from, are recorded.

  dipaco begin CONFIG --run s3://BUCKET/NAME --database env:DIPACO_DATABASE
      on a login node, or in the first job of a cluster
  dipaco worker --run s3://BUCKET/NAME
      on every other machine: the first of them prepares the text

No text is read and no device is used. For a run that has begun the same command says so, and its
tasks that failed are tried again.
"""

import argparse
import shlex

from dipaco.cli.options import add_run_start, begun

HELP = "begin a run, for workers that are started elsewhere"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_start(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.overrides import load_config

    config = load_config(options.config, options.overrides)

    from dipaco.launch.devices import use_cpu_only
    from dipaco.library.console import title_of

    use_cpu_only()
    with begun(options, config, reads_text=True) as (opened, is_new):
        print(title_of(opened) if is_new else "This run has begun before.")
    name = shlex.quote(str(options.run))
    print(f"Work on it, from any number of machines: dipaco worker --run {name}")
    return 0
