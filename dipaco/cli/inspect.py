"""Look into a run: the documents of each path, and the steps of the modules.

  dipaco inspect --run runs/quickstart
  dipaco inspect --run runs/quickstart --json
  dipaco inspect --run runs/quickstart --picture inspect.png

Shows the documents and domains of every path and the sizes of the shards. For every alternation:
how many of the router's documents each path gets without and with calibration, how often the router
agrees with the scores of the paths, and how many documents it sends to the same path as the router
before. For every module and phase: the norm of its mean outer gradient, the norm for each path
through it, and the mean cosine between two paths: 1 if they agree, 0 if they are unrelated, below 0
if they undo each other's work. If the run samples texts (`samples.prompts`): every
prompt, and its continuation by each release.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from dipaco.cli.options import add_json, add_run, output_path
from dipaco.observe.terminal import head, say, tail, terminal_width
from dipaco.plural import largest

HELP = "show what each path was given, and how modules moved"
MOST_SHOWN_PHASES = 8
MEANING = """\
norm: how far a phase moved the module (the length of its mean outer gradient)
cosine: between the outer gradients of two of its paths: 1 agree, 0 unrelated, -1 opposed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument(
        "--picture",
        type=output_path,
        metavar="FILE",
        help="the picture (default: inspect.png in the run's folder; with --json none)",
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.evaluation.style import check_picture, why_not_drawn
    from dipaco.runs.opening import reading
    from dipaco.runs.reading.inspection import inspection_of

    if options.picture is not None:
        check_picture(options.picture)
    with reading(options.run) as opened:
        inspection = inspection_of(opened)
        file = options.picture or (None if options.json else opened.layout.inspection)
    if options.json:
        print(json.dumps(inspection))
    else:
        _print(inspection)
    if file is not None:  # afterwards: its folder may be read-only
        from dipaco.evaluation.plots import draw_inspection

        problem = why_not_drawn(lambda file: draw_inspection(inspection, file), file)
        if not options.json:
            print(f"\n{problem or f'Drawn: {file}'}")
    return 0


def _print(inspection: dict[str, Any]) -> None:
    say(f"{inspection['name']}, seed {inspection['seed']}")
    for at in inspection["paths"]:
        say(
            f"path {at['path']:>3}  {at['documents']:,} documents ({at['share']:.1%}), "
            f"{at['test_documents']:,} of test: {largest(at['domains'], 4)}\n"
            f"          modules {' '.join(at['modules'])}"
        )
    bounds = {name: value for name, value in inspection["bounds"].items() if value is not None}
    say(f"shards: {', '.join(f'{name} {value:,.0f}' for name, value in bounds.items())} documents")
    for routing in inspection["routings"]:
        say(f"\nrouted at phase {routing['phase']}: router {routing['router']}")
        say(f"  shard sizes: {_sizes(routing['documents'])}")
        for name, value in routing.items():
            if name in ("phase", "router", "documents", "test"):
                continue
            shown = value
            if isinstance(value, list):
                shown = _sizes(value)
            elif not isinstance(value, str):
                shown = f"{value:.1%}" if isinstance(value, float) else f"{value:,}"
            say(f"  {name.replace('_', ' ')}: {shown}")
    say(f"\n{MEANING}")
    for module, at in inspection["modules"].items():
        steps = at["steps"][-MOST_SHOWN_PHASES:]
        if any(step["norm"] is not None for step in steps):
            norms = " ".join(_number(step["norm"]) for step in steps)
            cosines = " ".join(_number(step["cosine"]) for step in steps)
            say(
                f"module {module}  fan-in {len(at['paths'])}, phases {steps[0]['phase']} to "
                f"{steps[-1]['phase']}\n  norm    {norms}\n  cosine  {cosines}"
            )
        else:
            say(f"module {module}  fan-in {len(at['paths'])}: no outer step so far")
    for line in sample_lines(inspection["samples"], terminal_width()):
        say(line)


def sample_lines(samples: list[dict[str, Any]], width: int) -> Iterator[str]:
    """Each prompt, and under it how the base model and every release of the modular arm went on."""
    from dipaco.config import MODULAR
    from dipaco.schedule.plan import BASE

    shown = [each for each in samples if each["arm"] in (BASE, MODULAR)]
    for document in dict.fromkeys(each["document"] for each in shown):
        own = [each for each in shown if each["document"] == document]
        own.sort(key=lambda each: (each["arm"] != BASE, each["phase"]))
        label = f"\nprompt of {own[0]['domain']}: "
        yield label + tail(own[0]["prompt"], max(16, width - len(label)))
        for each in own:
            where = f"phase {each['phase']} path {each['path']}"
            where = "base model" if each["arm"] == BASE else where
            yield f"  {where:<18}  {head(each['text'], max(16, width - 22))}"


def _sizes(sizes: list[int]) -> str:
    return " ".join(f"{size:,}" for size in sizes)


def _number(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.3f}"
