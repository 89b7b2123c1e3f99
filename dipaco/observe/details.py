"""The details of a run, as lines. `dipaco status` prints them below its overview."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dipaco.observe.terminal import head, tail
from dipaco.plural import counted

MOST_ROWS = 64  # modules or paths of an arm that are listed; `--json` has all
MOST_SAMPLES = MOST_EVALUATIONS = 8


def details(status: Mapping[str, Any]) -> Iterator[str]:
    """Stages, text that was left out, modules and paths of every arm, bytes, quorums, swarms, and
    unfinished tasks.

    Args:
      status: the JSON values that `dipaco status --json` prints.
    """
    yield f"stages done: {', '.join(status['stages_done']) or 'none'}"
    for note in status["stages"].get("prepare", {}).get("notes", ()):
        yield f"text: {note}"
    if status["outside_bounds"]:
        yield f"shards outside their bounds: {status['outside_bounds']}"
    for name, arm in status["arms"].items():
        if arm["steps"]:
            yield from _arm(name, arm)
    yield from _samples(status["samples"])
    yield ""
    yield from _work(status)
    for swarm in status["swarms"]:
        yield from _swarm(swarm)
    yield from _volunteers(status["volunteers"])
    for locked in status["locked_credentials"]:
        yield (
            f"  locked: the credential of {locked['name']} ({locked['serial']}): "
            + "; ".join(locked["reasons"])
        )
    for task in status["unfinished"][:10]:
        subject = f" {task['arm']} {task['subject']}".rstrip()
        yield f"to do: {task['kind']}{subject} phase {task['phase']} ({task['state']})"


def sizes(num_bytes: Mapping[str, int]) -> str:
    """Bytes of each kind in words: `57.3 MB: 40.1 MB modules, 17.2 MB text`."""
    from rich.filesize import decimal

    return f"{decimal(sum(num_bytes.values()))}: {_kinds(num_bytes)}"


def _kinds(num_bytes: Mapping[str, int]) -> str:
    from rich.filesize import decimal

    return ", ".join(f"{decimal(num)} {kind.replace('_', ' ')}" for kind, num in num_bytes.items())


def _arm(name: str, arm: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n{name}: {counted(arm['phases'], 'phase')}, {counted(arm['steps'], 'step')} a path"
    if len(arm["modules"]) > MOST_ROWS or len(arm["paths"]) > MOST_ROWS:
        yield f"  {len(arm['modules'])} modules, {len(arm['paths'])} paths: each with `--json`"
    else:
        for module, at in arm["modules"].items():
            yield f"  module {module}  phase {at['phase']:4d}  {at['digest']}"
        for path, at in arm["paths"].items():
            loss = "" if at["loss"] is None else f"  loss {at['loss']:.3f}"
            yield f"  path {path:>4}  step {at['step']:6d}{loss}  {at['tokens']:,} tokens"
    evaluations = arm["evaluations"]
    if len(evaluations) > MOST_EVALUATIONS:
        yield f"  {len(evaluations)} evaluations, the newest here, each with `--json`"
    for evaluation in evaluations[-MOST_EVALUATIONS:]:
        yield f"  perplexity {evaluation['perplexity']:.2f} at phase {evaluation['phase']}"


def _samples(samples: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not samples:
        return
    arm, phase = samples[0]["arm"], samples[0]["phase"]
    yield f"\nsamples of {arm} at phase {phase}: `dipaco inspect` has all"
    for each in samples[:MOST_SAMPLES]:
        prompt, text = tail(each["prompt"], 24), head(each["text"], 72)
        yield f"  {each['domain']}, path {each['path']}: {prompt} | {text}"


def _work(status: Mapping[str, Any]) -> Iterator[str]:
    from rich.filesize import decimal

    if status["command"] != "run":
        yield f"command: {status['command']}"
    if any(status["bytes"].values()):
        yield f"bytes of all machines: {_kinds(status['bytes'])}"
    if (at := status["bytes_per_machine"])["of_the_run"]:
        until_now, of_the_run = (decimal(at[name]) for name in ("until_now", "of_the_run"))
        yield f"bytes per machine, as planned: {until_now} of {of_the_run}"
    if status["stored"]:
        cleaned = ", cleaned: it cannot go back or go on" * status["is_cleaned"]
        more = "" if status["finished"] else f"; a phase adds {decimal(status['growth'])}"
        yield f"stored: {sizes(status['stored'])}{cleaned}{more}"
    at = status["goodput"]
    if at["worker_seconds"]:
        yield (
            f"goodput: {at['tokens']:,} tokens, {at['tokens_per_worker_second']:,.0f} a second of "
            f"a worker; participation {at['participation']:.0%}"
        )
    if status["quorum"] is not None:
        yield from _quorum(status["quorum"])
    for number, rollback in enumerate(status["rollbacks"], start=1):
        aside = ", ".join(f"{n} {kind}" for kind, n in rollback["set_aside"].items())
        yield f"rollback {number}: to phase {rollback['phase']}, set aside: {aside}"
    for refusal in status["refusals"][:5]:
        yield f"refused: {refusal['what']}: {refusal['reason']} Again: {refusal['task']}"


def _quorum(quorum: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"quorum {quorum['share']:.0%} and {quorum['grace_seconds']:g} s of grace: "
        f"{len(quorum['late'])} of {quorum['taken']} contributions were late"
    )
    for at in quorum["in_grace"]:
        left = max(0.0, at["seconds_left"])
        yield f"  {at['module']} phase {at['phase']}: steps without the rest in {left:.0f} s"
    steps = quorum["newest_steps"]
    if len(steps) > MOST_ROWS:
        yield f"  {len(steps)} modules: what each took with `--json`"
        return
    for module, at in steps.items():
        late = f", late: {', '.join(map(str, at['late_paths']))}" if at["late_paths"] else ""
        paths = ", ".join(map(str, at["paths"]))
        yield f"  {module} step {at['step']} took paths {paths or 'none'}{late}"


def _volunteers(volunteers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if volunteers:
        yield "\nvolunteers, by samples in all sessions:"
    for one in volunteers[:MOST_ROWS]:
        here = f", here: {one['does'] or 'waits'}" if one["is_here"] else ""
        paths = ", ".join(map(str, one["paths"]))
        yield (
            f"  {one['place']}  {one['name']}  {one['samples']:,} samples ({one['share']:.1%}) in "
            f"{one['steps']:,} steps of path {paths}{here}"
        )
    if len(volunteers) > MOST_ROWS:
        yield f"  {len(volunteers)} in all: `--json` has them"


def _swarm(swarm: Mapping[str, Any]) -> Iterator[str]:
    loss = "" if swarm["loss"] is None else f", loss {swarm['loss']:.3f}"
    state = "" if swarm["is_open"] else " (between two phases)"
    if not swarm.get("is_staffed", True):
        state = " (no volunteers: left to plain workers)"
    yield (
        f"\nswarm of {swarm['arm']} path {swarm['path']}{state}: step {swarm['step']:,}, "
        f"{swarm['samples']} of {swarm['target']} samples, "
        f"{swarm['samples_per_second']:.1f} samples/s{loss}; {len(swarm['peers'])} peers; "
        f"gradients checked: {swarm['checks']['done']} of {swarm['checks']['due']} due"
    )
    for name, peer in swarm["peers"].items():
        yield (
            f"  {name}  {peer['kind']}, now {peer.get('does', 'unknown')}  "
            f"{peer['samples']:,} samples, "
            f"{peer['samples_per_second']:.1f}/s, {peer['bytes_up'] / 1e6:.1f} MB up, "
            f"{peer['bytes_down'] / 1e6:.1f} MB down, {peer['seconds'] / 60:.1f} min"
        )
    for name, reason in list(swarm["gone"].items())[-5:]:
        yield f"  gone: {name}: {reason}"
    for refusal in swarm["refused"][-5:]:
        yield f"  refused: {refusal['who']}: {refusal['why']}"
