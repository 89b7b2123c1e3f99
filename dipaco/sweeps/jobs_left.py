"""The jobs that are left of a sweep: base models, and runs, each after its base model.

If several base models are of one text, the first reads it and the others take it from that run.
They wait for it, and if it fails they train all the same, with its text if that is prepared.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from dipaco.data.errors import CorpusDamaged
from dipaco.observe.events import Event
from dipaco.runs.opening import reading
from dipaco.runs.reading.progress import progress_of
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.folder import is_finished
from dipaco.sweeps.jobs import Job
from dipaco.sweeps.shared_base import (
    base_digest,
    begin_row,
    begin_shared,
    corpus_digest,
    damage_of,
    folder_with_text,
    has_base_model,
    has_text,
)
from dipaco.sweeps.trials import SweepRun


def jobs_left(
    runs: Sequence[SweepRun],
    layout: SweepLayout,
    first_row: str,
    tell: Callable[[Event], None],
) -> list[Job]:
    """The jobs, in the order in which to start them.

    Args:
      runs: those that are not finished.
      first_row: the sweep's first row, whose text the others take.
    """

    @cache  # a text is read whole once, for all base models
    def remembered_damage(text: Path) -> CorpusDamaged | None:
        if damage := damage_of(text):
            tell(Event("text_left", {"folder": str(text), "problem": str(damage)}, "warning"))
        return damage

    def text_for(run: SweepRun) -> Path | None:
        return folder_with_text(layout, run.config, first_row, remembered_damage)

    jobs: dict[str, Job] = {}
    readers: dict[str, str] = {}  # text that is not there -> who reads it
    for run in runs:
        digest = base_digest(run.config)
        shared, title = layout.shared(digest), f"base model {digest}"
        is_begun = Layout(run.folder).ledger.exists()
        if not is_begun and title not in jobs and not has_base_model(shared):
            reader = None
            if not has_text(shared) and text_for(run) is None:
                reader = readers.setdefault(corpus_digest(run.config), title)
            jobs[title] = Job(
                title,
                shared,
                "pretrain",
                after=None,
                follows=None if reader == title else reader,
                begin=partial(_begin_shared, run, shared, partial(text_for, run)),
                is_done=partial(has_base_model, shared),
            )
        jobs[run.title] = Job(
            run.title,
            run.folder,
            "worker",
            after=title if title in jobs and not is_begun else None,
            follows=None,
            begin=partial(_begin_row, run, shared),
            is_done=partial(is_finished, run.folder),
        )
    return list(jobs.values())


def _begin_shared(run: SweepRun, shared: Path, find_text: Callable[[], Path | None]) -> Event:
    begin_shared(shared, run.config, find_text)
    return Event("base_begun", {"shared": shared.name, "row": run.title})


def _begin_row(run: SweepRun, shared: Path) -> Event:
    if not Layout(run.folder).ledger.exists():
        begin_row(run.folder, run.config, shared)
        return Event("row_begun", {"row": run.title, "shared": shared.name})
    with reading(run.folder) as opened:
        opened.ledger.failures.retry()
        done, total = progress_of(opened)
    return Event("row_goes_on", {"row": run.title, "done": done / max(total, 1)})
