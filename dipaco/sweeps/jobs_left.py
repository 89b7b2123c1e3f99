"""The jobs that are left of a sweep: base models, and runs, each after its base model.

If several base models are of one text, the first reads it and the others take it from that run.
They wait for it, and if it fails they train all the same, with its text if that is prepared.
Once a text is there, in whichever folder, a run whose paths are more than its router documents is
refused.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from dipaco.data.corpus import read_manifest
from dipaco.data.errors import CorpusDamaged
from dipaco.errors import DipacoError
from dipaco.observe.events import Event
from dipaco.routing.errors import TooFewRouterDocuments
from dipaco.runs.opening import reading
from dipaco.runs.reading.progress import progress_of
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.equal_arms import SweepRun
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


def jobs_left(
    runs: Sequence[SweepRun],
    layout: SweepLayout,
    is_left: Callable[[SweepRun], bool],
    first_row: str,
    tell: Callable[[Event], None],
) -> list[Job]:
    """The jobs, in the order in which to start them.

    Args:
      is_left: true of a run that is not finished.
      first_row: the sweep's first row, whose text the others take.
    """

    @cache  # a text is read whole once, for all base models
    def remembered_damage(text: Path) -> CorpusDamaged | None:
        if damage := damage_of(text):
            tell(Event("text_left", {"folder": str(text), "problem": str(damage)}, "warning"))
        return damage

    @cache  # a job is asked for its refusal again and again
    def num_router_documents(folder: Path) -> int:
        return read_manifest(Layout(folder).corpus).documents["router"]

    def text_for(run: SweepRun) -> Path | None:
        return folder_with_text(layout, run.config, first_row, remembered_damage)

    jobs: dict[str, Job] = {}
    readers: dict[str, tuple[str, Path]] = {}  # text that is not there -> who reads it, and where
    taken_from: dict[Path, Path] = {}  # base model without its text -> the folder that has it first
    for run in filter(is_left, runs):
        digest = base_digest(run.config)
        shared, title = layout.shared(digest), f"base model {digest}"
        is_begun = Layout(run.folder).ledger.exists()
        if not is_begun and title not in jobs and not has_base_model(shared):
            reader = None
            if not has_text(shared):
                source = text_for(run)
                if source is None:
                    text = corpus_digest(run.config)
                    reader, source = readers.setdefault(text, (title, shared))
                taken_from[shared] = source
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
            refusal=partial(
                _refusal, run, (shared, taken_from.get(shared, shared)), num_router_documents
            ),
        )
    return list(jobs.values())


def _refusal(
    run: SweepRun, folders: Sequence[Path], num_router_documents: Callable[[Path], int]
) -> TooFewRouterDocuments | None:
    """Why a run fails at its router: None for one that has begun, which says so itself, and as long
    as its text is in none of the folders. The first that has one counts.
    """
    if Layout(run.folder).ledger.exists():
        return None
    folder = next(filter(has_text, folders), None)
    if folder is None:
        return None
    try:
        documents = num_router_documents(folder)
    except DipacoError:  # a damaged text is said by the process that reads it
        return None
    paths = run.config.num_paths
    return TooFewRouterDocuments(documents=documents, paths=paths) if documents < paths else None


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
