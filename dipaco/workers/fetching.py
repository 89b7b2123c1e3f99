"""Fetches modules from a bucket: whole, or as the contributions of the other paths, whichever is
fewer bytes (`outer.fetch`).

A step that is computed here is that of the `outer` task (`stepped_module`), and counts only if the
result has the recorded digest. Otherwise, and where a message is gone, the module is fetched whole
by the next read, as it is where it does not pay.
"""

import collections
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from dipaco.control.errors import NotAvailable
from dipaco.control.plan import Arm
from dipaco.control.release import Release
from dipaco.control.tasks import Contribution, Task
from dipaco.outer.errors import NotFinite
from dipaco.runs.run import Run
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.fetch_lock import fetch_lock
from dipaco.store.objects import Objects
from dipaco.store.tensors import keep_state, keep_tree
from dipaco.topology import ModuleId
from dipaco.workers.errors import ContributionMissing, ContributionRefused, ModuleDiffers
from dipaco.workers.fetch_plan import FetchPlan, Version, cheapest
from dipaco.workers.tasks.outer import contributions_of, stepped_module

FETCHES_AT_ONCE = 8
FETCHED_WHOLE = (  # where it raises one of these
    *(ObjectMissing, ObjectDamaged, NotAvailable, NotFinite),
    *(ContributionMissing, ContributionRefused, ModuleDiffers),
)

_log = logging.getLogger("dipaco")


def bring_modules(run: Run, arm_name: str, modules: Iterable[ModuleId], phase: int) -> None:
    """Puts modules as they are at the start of a phase into this machine's folder, where that takes
    fewer bytes than fetching them whole; the others are left to their reader.
    """
    for module in modules:
        bring_module(run, arm_name, module, phase)


def bring_release(run: Run, release: Release, path: int) -> None:
    """The same of the modules of a path of a release, as far as they are those of its phase: a path
    that stopped early has older ones.
    """
    newest = run.ledger.facts.receipts_at(release.arm, release.phase)
    of_path = release.modules_of(path)
    as_they_are = [module for module in of_path if newest.get(module) == of_path[module]]
    bring_modules(run, release.arm, as_they_are, release.phase)


def bring_module(
    run: Run, arm_name: str, module: ModuleId, phase: int, *, with_outer_state: bool = False
) -> None:
    """The same of one module; with its outer state, for the next outer step."""
    arm, objects = run.plan.arm(arm_name), run.objects
    if objects.remote is None or not run.computes_modules or not _is_stepped(run, arm, phase):
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
        _Folder(objects),
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
    """What a machine that trains this path, and nothing else, fetches of its modules before a
    phase. It has them as they were at the path's last phase, and what the path contributed.
    """
    return sum(
        _plan_of_path(run, arm, path, module, phase).num_bytes
        for module in arm.stepped_before(path, phase)
    )


def _plan_of_path(run: Run, arm: Arm, path: int, module: ModuleId, phase: int) -> FetchPlan:
    whole = run.ledger.facts.module(arm.name, module, phase).parameters.num_bytes
    before = arm.trained_before(path, phase)
    if before is None or not _is_stepped(run, arm, phase):
        return FetchPlan(None, whole)
    holdings = _OwnMachine(path, before, arm.trained_before(path, before) is not None)
    versions = _versions(run, arm, module, phase, is_in_time=True)
    return cheapest(whole, versions, holdings, _remaining(arm, phase))


def _is_stepped(run: Run, arm: Arm, phase: int) -> bool:
    """Whether the modules of a phase were made by outer steps, which may be done again here."""
    return arm.is_averaged and phase > 0 and run.config.outer.fetch == "cheapest"


def _remaining(arm: Arm, phase: int) -> int:
    return max(1, arm.phases - phase)


def _versions(
    run: Run, arm: Arm, module: ModuleId, phase: int, *, is_in_time: bool = False
) -> Iterator[Version]:
    """A module before `phase`, the newest first, as far back as its contributions are kept.

    Args:
      is_in_time: as it is while no module is ahead of `phase`.
    """
    facts, keep = run.ledger.facts, run.config.retention.num_contributions
    for at in reversed(range(phase)):
        try:
            contributions = _taken(run, arm, module, at)
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


def _taken(run: Run, arm: Arm, module: ModuleId, step: int) -> list[Contribution]:
    """The contributions that an outer step took, in the order of its sum."""
    if arm.has_quorum:
        of_step = run.ledger.quorums.of_step(arm.name, module, step)
        keys = [(taken.phase, taken.path) for taken in of_step]
    else:
        keys = [(step, path) for path in arm.paths_through(module, step)]
    return contributions_of(run, _task(arm, module, step), keys)


def _task(arm: Arm, module: ModuleId, step: int) -> Task:
    return Task("outer", arm.name, str(module), step)


def _compute(run: Run, arm: Arm, module: ModuleId, step: int) -> None:
    """Computes an outer step and keeps the module and its outer state in this machine's folder.
    Raises one of `FETCHED_WHOLE`.
    """
    facts = run.ledger.facts
    stored, recorded = (facts.module(arm.name, module, at) for at in (step, step + 1))
    contributions = _taken(run, arm, module, step)
    if not contributions:  # it stays as it is
        return
    messages = [each.message for each in contributions if not run.objects.has(each.message)]
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as threads:  # small ones: round trips, not bytes
        collections.deque(threads.map(run.objects.file, messages), maxlen=0)
    stepped = stepped_module(run, _task(arm, module, step), stored, contributions)
    is_equal = keep_tree(run.objects, recorded.parameters, stepped.after)
    if is_equal and recorded.outer_state is not None:
        is_equal = keep_state(run.objects, recorded.outer_state, stepped.momentum)
    if not is_equal:
        raise ModuleDiffers(module=module, phase=step + 1)


class _Folder:
    """What this machine has in its folder."""

    def __init__(self, objects: Objects):
        self._objects = objects

    def has_module(self, version: Version) -> bool:
        return self._objects.has(version.parameters)

    def has_outer_state(self, version: Version) -> bool:
        return version.outer_state is None or self._objects.has(version.outer_state)

    def has_message(self, contribution: Contribution) -> bool:
        return self._objects.has(contribution.message)


class _OwnMachine:
    """What a path has left on a machine that does nothing else.

    Args:
      path: whose machine it is.
      before: the last phase that it trained.
      has_fetched: whether it had trained one before that, and so come to the outer state: by its
        first steps, or by fetching it once.
    """

    def __init__(self, path: int, before: int, has_fetched: bool):
        self._path, self._before, self._has_fetched = path, before, has_fetched

    def has_module(self, version: Version) -> bool:
        return version.phase == self._before

    def has_outer_state(self, version: Version) -> bool:
        return version.outer_state is None or self._has_fetched

    def has_message(self, contribution: Contribution) -> bool:
        return contribution.path == self._path
