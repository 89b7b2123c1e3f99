"""Train one path by machines that come and go (DeDLOC, arXiv 2106.10207, extra `volunteer`).

  dipaco swarm start CONFIG --run RUN [--path I]      a backbone: leads, holds state, saves
  dipaco swarm token --run RUN --name ANA --days 7    a credential for one name, a file to send
  dipaco swarm revoke ANA --run RUN                   revokes all credentials of that name
  dipaco swarm verify --run RUN                       replays a night, names the step of a lie
  dipaco swarm undo --run RUN --to STEP [--path I]    goes back to an earlier step
  dipaco swarm join ADDRESS --token FILE              lend this machine (Ctrl-C leaves cleanly)
  dipaco swarm watch ADDRESS --token FILE             how the run is, and who did how much

  dipaco swarm join ADDRESS --token FILE --threads 2 --megabits 10

`start` is a worker of the run that has the group take the steps of one path, and needs no
accelerator. Start two, and either may die. `dipaco status --run RUN` shows the group.
"""

import argparse
import importlib.util
from collections.abc import Callable

from dipaco.cli import swarm_credentials, swarm_join, swarm_start, swarm_verify, swarm_watch
from dipaco.cli.options import add_run, path_of
from dipaco.cli.swarm_credentials import run_to_lead
from dipaco.errors import ExtraMissing

HELP = "train a path by volunteers' machines: start, token, revoke, join, watch, verify, undo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="swarm_verb", required=True, metavar="VERB")

    def verb(name: str, does: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".")

    swarm_start.add_arguments(
        verb("start", "begin a run, or go on with it, and lead the swarm of one of its paths")
    )
    swarm_credentials.add_token_arguments(
        verb("token", "make a credential for one name: a file to send to a volunteer")
    )
    swarm_credentials.add_revoke_arguments(verb("revoke", "revoke all credentials of a name"))

    undo = verb("undo", "go back to an earlier step of a path, before a lie")
    add_run(undo)
    undo.add_argument("--to", type=int, required=True, metavar="STEP", help="steps to keep")
    undo.add_argument("--path", type=int, metavar="I", help="needed if the run has several")
    add_run(verb("verify", "take a night's steps again on this machine, and find a lie in them"))
    swarm_join.add_arguments(verb("join", "lend this machine to a swarm; Ctrl-C leaves cleanly"))
    swarm_watch.add_arguments(verb("watch", "show how the run is, and what each volunteer did"))


def run(options: argparse.Namespace) -> int:
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "start": swarm_start.run,
        "token": swarm_credentials.token,
        "revoke": swarm_credentials.revoke,
        "verify": _verify,
        "undo": _undo,
        "join": swarm_join.run,
        "watch": swarm_watch.run,
    }
    if importlib.util.find_spec("cryptography") is None:
        raise ExtraMissing(feature="`dipaco swarm`", package="cryptography", extra="volunteer")
    return verbs[options.swarm_verb](options)


def _undo(options: argparse.Namespace) -> int:
    from dipaco.workers.rollback import undo_steps

    with run_to_lead(options) as opened:
        path = path_of(options.path, opened.config.num_paths)
        undo_steps(opened, path, options.to)
    print(f"Path {path} is at step {options.to} again. `dipaco swarm start` goes on from there.")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from dipaco.caches import cache_folder
    from dipaco.launch.equal_bits import ask_for_equal_bits
    from dipaco.runs.programs import use_compilation_cache

    ask_for_equal_bits()
    use_compilation_cache(cache_folder() / "compiled")
    with run_to_lead(options) as opened:
        return swarm_verify.run(options, opened)
