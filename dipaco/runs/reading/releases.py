"""The releases of a run: one by arm and phase, its paths, and the texts that releases continued."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dipaco.errors import BadSetting, NoSuchPath
from dipaco.runs.errors import NoSuchArm

if TYPE_CHECKING:
    from dipaco.control.planning.release import Release
    from dipaco.control.planning.tasks import Sampled
    from dipaco.runs.run import Run


def find_release(run: "Run", arm: str, phase: int | None = None) -> "Release":
    """The release of an arm at a phase, None = its newest. Raises `NoSuchArm`, `NotAvailable`."""
    check_arm(run, arm)
    return run.ledger.facts.release(arm, phase)


def check_arm(run: "Run", arm: str) -> None:
    """Raises `NoSuchArm`."""
    known = [each.name for each in (run.plan.base, *run.plan.arms)]
    if arm not in known:
        raise NoSuchArm(arm=arm, known=", ".join(known))


def check_path(path: int | None, release: "Release") -> None:
    """Raises `NoSuchPath`, or `BadSetting` if it is no number. None (the router's choice)
    passes.
    """
    last = len(release.paths) - 1
    if path is not None and (isinstance(path, bool) or not hasattr(path, "__index__")):
        raise BadSetting(name="path", value=path, expected=f"a whole number, 0 to {last}")
    if path is not None and not 0 <= path < len(release.paths):
        raise NoSuchPath(path=path, last=last)


def samples_as_json(sampled: "Iterable[Sampled]") -> list[dict[str, Any]]:
    """One JSON object for each prompt of each release, which `arm` and `phase` name."""
    return [
        {"arm": each.arm, "phase": each.phase, **sample._asdict()}
        for each in sampled
        for sample in each.samples
    ]
