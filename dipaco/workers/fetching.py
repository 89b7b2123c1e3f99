"""Fetches modules from a bucket: whole, or as the contributions of the other paths, whichever is
fewer bytes.

After its outer step a module is there whole. It is also the module before the step, the outer state
before it, and the contributions that the step took. A machine that has the first two, and its own
contribution, computes the step from the messages of the other paths: with a codec of 8 bits and a
fan-in of 2, a quarter of the bytes. It then has the next outer state as well, and goes on like that
from phase to phase.

Such a step is computed as the `outer` task does (`stepped_module`), and counts only if the result
has the recorded digest. Otherwise, and if a message is gone or computing does not pay, the next
read fetches the module whole.
"""

import collections
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from dipaco.control.errors import NotAvailable
from dipaco.control.planning.release import Release
from dipaco.control.planning.tasks import Contribution, Task
from dipaco.outer.errors import NotFinite
from dipaco.receipt import Receipt
from dipaco.runs.forecast.traffic import WORTH
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.fetch_lock import fetch_lock
from dipaco.store.objects import Objects
from dipaco.store.tensors import keep_state, keep_tree
from dipaco.topology import ModuleId
from dipaco.workers.errors import ContributionMissing, ContributionRefused, ModuleDiffers
from dipaco.workers.stepping import contributions_taken, stepped_module

FETCHES_AT_ONCE = 8
FETCHED_WHOLE = (  # errors after which a module is fetched whole
    *(ObjectMissing, ObjectDamaged, NotAvailable, NotFinite),
    *(ContributionMissing, ContributionRefused, ModuleDiffers),
)

_log = logging.getLogger("dipaco")


class Version(NamedTuple):
    """A module at the start of a phase, and what its outer step at the end of it took."""

    phase: int
    parameters: Receipt
    outer_state: Receipt | None  # None: it has not stepped
    contributions: tuple[Contribution, ...]


class Holdings(NamedTuple):
    """Tells what a machine has already."""

    has_module: Callable[[Version], bool]
    has_outer_state: Callable[[Receipt], bool]
    has_message: Callable[[Contribution], bool]


class FetchPlan(NamedTuple):
    """The cheapest way to fetch a module."""

    start: int | None  # the steps begin from the module at this phase. None: fetch the whole
    num_bytes: int


def bring_modules(run: Run, arm_name: str, modules: Iterable[ModuleId], phase: int) -> None:
    """Computes the modules of a phase's start into this machine's folder, if that takes fewer bytes
    than fetching them whole. The others are left to their reader.
    """
    for module in modules:
        bring_module(run, arm_name, module, phase)


def bring_release(run: Run, release: Release, path: int) -> None:
    """Does the same for the modules of a path of a release, if they are of the release's phase. A
    path that stopped early has older ones.
    """
    newest = run.ledger.facts.receipts_at(release.arm, release.phase)
    of_path = release.modules_of(path)
    as_they_are = [module for module in of_path if newest.get(module) == of_path[module]]
    bring_modules(run, release.arm, as_they_are, release.phase)


def bring_module(
    run: Run, arm_name: str, module: ModuleId, phase: int, *, with_outer_state: bool = False
) -> None:
    """Does the same for one module, with its outer state if that is for the next outer step."""
    arm, objects = run.plan.arm(arm_name), run.objects
    if objects.remote is None or not run.computes_modules or not _is_stepped(arm, phase):
        return
    stored = run.ledger.facts.module(arm.name, module, phase)
    wanted = [stored.parameters]
    if with_outer_state and stored.outer_state is not None:
        wanted.append(stored.outer_state)
    lacking = [receipt for receipt in wanted if not objects.has(receipt)]
    if not lacking:
        return
    plan = cheapest(
        sum(receipt.num_bytes for receipt in lacking),
        _versions(run, arm, module, phase),
        _in_folder(objects),
        _remaining(arm, phase),
    )
    if plan.start is None:
        return
    with fetch_lock(objects.root, stored.parameters.name, "step"):
        if all(map(objects.has, wanted)):  # another process has done it meanwhile
            return
        try:
            for at in range(plan.start, phase):
                _compute(run, arm, module, at)
        except FETCHED_WHOLE as error:
            run.computes_modules = not isinstance(error, ModuleDiffers)
            _log.warning("%s at phase %d is fetched whole: %s", module, phase, error)


def bytes_down(run: Run, arm: Arm, path: int, phase: int) -> int:
    """Bytes that a machine which trains this path, and nothing else, fetches of its modules before
    a phase. It has the modules of the path's last phase, and the path's own contribution.
    """
    return sum(
        _plan_of_path(run, arm, path, module, phase).num_bytes
        for module in arm.topology.modules_of(path)
    )


def _plan_of_path(run: Run, arm: Arm, path: int, module: ModuleId, phase: int) -> FetchPlan:
    whole = run.ledger.facts.module(arm.name, module, phase).parameters.num_bytes
    before = arm.trained_before(path, phase)
    if before is None or not _is_stepped(arm, phase):
        return FetchPlan(None, whole)
    # It came to the outer state by its first steps, or by fetching it once.
    has_state = arm.trained_before(path, before) is not None
    holdings = Holdings(
        lambda version: version.phase == before,
        lambda _: has_state,
        lambda contribution: contribution.path == path,
    )
    versions = _versions(run, arm, module, phase, is_in_time=True)
    return cheapest(whole, versions, holdings, _remaining(arm, phase))


def _is_stepped(arm: Arm, phase: int) -> bool:
    """True if outer steps made the modules of a phase. This machine can do them again."""
    return arm.has_outer_steps and phase > 0


def _remaining(arm: Arm, phase: int) -> int:
    return max(1, arm.phases - phase)


def _versions(
    run: Run, arm: Arm, module: ModuleId, phase: int, *, is_in_time: bool = False
) -> Iterator[Version]:
    """Versions of a module before `phase`, the newest first, as far back as its contributions are
    kept. With `is_in_time`, as far as contributions are kept while no module is ahead of `phase`.
    """
    facts, keep = run.ledger.facts, run.config.retention.num_contributions
    for at in reversed(range(phase)):
        try:
            contributions = contributions_taken(run, _task(arm, module, at))
        except ContributionMissing:  # it is made again
            return
        newest = phase if is_in_time else arm.phases
        is_kept = at + keep > newest or not (
            at + keep <= phase or facts.has_module(arm.name, module, at + keep)
        )
        if contributions and not is_kept:
            return
        stored = facts.module(arm.name, module, at)
        yield Version(at, stored.parameters, stored.outer_state, tuple(contributions))


def _task(arm: Arm, module: ModuleId, step: int) -> Task:
    return Task("outer", arm.name, str(module), step)


def _compute(run: Run, arm: Arm, module: ModuleId, step: int) -> None:
    """Computes an outer step and keeps the module and its outer state in this machine's folder.
    Raises one of `FETCHED_WHOLE`.
    """
    facts = run.ledger.facts
    stored, recorded = (facts.module(arm.name, module, at) for at in (step, step + 1))
    task = _task(arm, module, step)
    contributions = contributions_taken(run, task)
    if not contributions:  # it stays as it is
        return
    messages = [each.message for each in contributions if not run.objects.has(each.message)]
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as threads:  # small ones: round trips, not bytes
        collections.deque(threads.map(run.objects.file, messages), maxlen=0)
    stepped = stepped_module(run, task, stored, contributions)
    is_equal = keep_tree(run.objects, recorded.parameters, stepped.after)
    if is_equal and recorded.outer_state is not None:
        is_equal = keep_state(run.objects, recorded.outer_state, stepped.momentum)
    if not is_equal:
        raise ModuleDiffers(module=module, phase=step + 1)


def _in_folder(objects: Objects) -> Holdings:
    """The objects in this machine's folder."""
    return Holdings(
        lambda version: objects.has(version.parameters),
        objects.has,
        lambda contribution: objects.has(contribution.message),
    )


def cheapest(
    whole: int, versions: Iterable[Version], holdings: Holdings, remaining: int
) -> FetchPlan:
    """Finds the way of the fewest bytes. Pure.

    Args:
      whole: bytes of the module after its step.
      versions: of the module before, the newest first, as far back as their messages are there.
      remaining: how often it fetches the module from now on. An outer state that it lacks is
        fetched if that pays until the end: once it is there, steps need messages alone.
    """
    messages = 0
    for version in versions:
        messages += sum(
            contribution.message.num_bytes
            for contribution in version.contributions
            if not holdings.has_message(contribution)
        )
        if messages >= WORTH * whole:
            break
        if not holdings.has_module(version):
            continue
        state = version.outer_state
        lacking = 0 if state is None or holdings.has_outer_state(state) else state.num_bytes
        if lacking + remaining * messages < WORTH * remaining * whole:
            return FetchPlan(version.phase, messages + lacking)
    return FetchPlan(None, whole)
