"""An opened run for use from Python: its results, its release, its modules, its text."""

import contextlib
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dipaco.config import RunConfig
from dipaco.control.errors import NotAvailable
from dipaco.control.planning.release import Release
from dipaco.control.planning.tasks import Sampled
from dipaco.errors import missing_packages_named
from dipaco.library.arguments import listed_texts, one_text, sampling_of, whole_number
from dipaco.library.errors import (
    ModuleNotReleased,
    NoSuchModule,
    RunClosed,
    RunOfOtherThread,
    RunUnfinished,
)
from dipaco.library.report import Comparison, OpenedSweep, Picture, RunReport
from dipaco.model.config import num_parameters, part_parameters
from dipaco.plural import counted, listed
from dipaco.runs.opening import difference, open_run
from dipaco.runs.reading.releases import check_arm, check_path, find_release
from dipaco.runs.rules import phrase
from dipaco.runs.run import Run
from dipaco.store.address import Address
from dipaco.store.layout import SweepLayout
from dipaco.store.tensors import load_tree
from dipaco.topology import ModuleId

if TYPE_CHECKING:
    import numpy as np

    from dipaco.serving.continuation import Continuation

MOST_LISTED = 16  # limit of the modules in an error
ALL_SETTINGS = 1000  # more than there are


@missing_packages_named()
def open(folder: Path | str, *, arm: str = "modular", phase: int | None = None) -> Any:
    """Opens a run for reading, finished or not, or the table of a sweep.

    Args:
      folder: the run's folder, or s3://BUCKET/NAME, gs://BUCKET/NAME.
      arm: modular, dense, dense_equal_tokens, data_parallel or base.
      phase: the release of this phase. None = the newest release at each access.

    Returns:
      An `OpenedRun`. Of a sweep's folder an `OpenedSweep`, which has no arm and no phase.

    Raises:
      BadSetting: `phase` is no whole number.
      SweepUnfinished, BadReport: the sweep has no table that can be read.
      NoSuchRun, RunOfOtherVersion: the folder has no run that can be read.
      NoSuchArm: the run has no such arm.
    """
    if phase is not None:
        phase = whole_number("phase", phase, 0)
    sweep = SweepLayout(Address.of(folder).folder)
    if sweep.sweep.exists():
        return OpenedSweep(sweep)
    run = open_run(folder)
    try:
        check_arm(run, arm)
    except BaseException:
        run.ledger.close()
        raise
    return OpenedRun(run, arm, phase)


def compare(a: "OpenedRun | Path | str", b: "OpenedRun | Path | str") -> Comparison:
    """The tables of two finished runs, row by row, and the settings in which they differ.

    Raises:
      RunUnfinished: a run is not finished yet.
      NoSuchRun, RunOfOtherVersion: a folder has no run that can be read.
    """
    with contextlib.ExitStack() as stack:
        runs = [
            each if isinstance(each, OpenedRun) else stack.enter_context(open(each))
            for each in (a, b)
        ]
        differs = difference(*(run.config for run in runs), most=ALL_SETTINGS)
        notes = [f"From a to b: {differs}." if differs else "All settings are the same."]
        rules = [phrase(run._run.rules) for run in runs]
        if rules[0] != rules[1]:
            notes.append(f"Rules of a: {rules[0]}. Of b: {rules[1]}.")
        one, other = (run._run.stage("prepare").artifacts["corpus"].digest for run in runs)
        if one != other:
            notes.append("Text or tokenizer differ: bits per byte compare tokenizers of one text.")
        by = "perplexity" if one == other else "bits_per_byte"
        return Comparison(*(run.report for run in runs), notes, by)


class OpenedRun:
    """A run that is read only. As a context manager it closes the run at the end.

    The ledger belongs to the thread that opened it. Methods that read the ledger raise
    `RunOfOtherThread` in another thread, and `RunClosed` once it is closed. The others still work.

    Attributes:
      arm, phase: the releases that are read. Phase None = the newest.
    """

    def __init__(self, run: Run, arm: str = "modular", phase: int | None = None):
        self._opened = run
        self._thread, self._is_closed = threading.get_ident(), False
        self.arm, self.phase = arm, phase

    @property
    def _run(self) -> Run:
        """The run, with a readable ledger. Raises `RunClosed`, `RunOfOtherThread`."""
        if self._is_closed:
            raise RunClosed(folder=self.folder)
        if threading.get_ident() != self._thread:
            raise RunOfOtherThread(folder=self.folder)
        return self._opened

    @property
    def folder(self) -> str:
        """The run's folder or URL."""
        return str(self._opened.address)

    @property
    def config(self) -> RunConfig:
        """All settings of the run."""
        return self._opened.config

    @property
    def is_finished(self) -> bool:
        """True if every task is done."""
        return self._run.ledger.queue.is_finished()

    @property
    @missing_packages_named()
    def report(self) -> RunReport:
        """The table that `dipaco train` prints, curves and notes. Raises `RunUnfinished`."""
        from dipaco.runs.reading.report import make_report

        unfinished = self._run.ledger.queue.unfinished()
        if unfinished:
            to_do = counted(len(unfinished), "task")
            raise RunUnfinished(folder=self.folder, unfinished=to_do)
        return RunReport(make_report(self._run))

    @property
    def release(self) -> Release:
        """The consistent set of modules that is read. Raises `NotAvailable`: there is none yet."""
        return find_release(self._run, self.arm, self.phase)

    @property
    def samples(self) -> tuple[Sampled, ...]:
        """Continuations of the run's prompts by each release of the arm, phases ascending. If
        `phase` is set, only its release is included. Empty in a run without `samples.prompts`.
        """
        sampled = self._run.ledger.facts.samples(self.arm)
        return tuple(each for each in sampled if self.phase in (None, each.phase))

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the arm's modules: early/0000, ..."""
        return tuple(map(str, self.config.plan.arm(self.arm).topology.modules))

    @missing_packages_named()
    def module(self, name: str, *, path: int | None = None) -> dict[str, Any]:
        """The parameters of a module in the release: part -> tree of arrays.

        Args:
          name: a name of `modules`.
          path: reads this path's copy. It only matters in a run whose paths stop early.

        Raises:
          NoSuchModule, BadModuleId, NoSuchPath: the path or the run has no module of that name.
          ModuleNotReleased: paths hold it at different phases. Choose one with `path`.
        """
        release, module = self.release, str(ModuleId.parse(name))
        check_path(path, release)
        paths = range(len(release.paths)) if path is None else (path,)
        held = {release.paths[p][module]: p for p in paths if module in release.paths[p]}
        if not held:
            known = sorted({each for p in paths for each in release.paths[p]})
            raise NoSuchModule(module=name, known=listed(known, MOST_LISTED))
        if len(held) > 1:
            raise ModuleNotReleased(module=name, paths=", ".join(map(str, sorted(held.values()))))
        return load_tree(self._run.objects, release.objects[next(iter(held))])

    @missing_packages_named()
    def path(self, number: int) -> dict[str, Any]:
        """The parameters of a whole path in the release: part -> tree of arrays. Raises
        `NoSuchPath`, and `BadSetting` for a value that is no number.
        """
        release = self.release
        check_path(number, release)
        return self._run.path_of(release, number)

    @missing_packages_named()
    def route(self, texts: str | Sequence[str], *, rule: str | None = None) -> "np.ndarray":
        """The path of each text by its first tokens.

        Args:
          texts: one, or N of them.
          rule: `features` or `likelihood`; None = the run's `routing.rule`.

        Returns:
          int32 [N].

        Raises:
          EmptyPrompt, HalfCharacter: a text has no token, or half of a surrogate pair.
          ReleaseOfOtherRouter, NotAllPaths: no text can be routed to this release.
        """
        from dipaco.serving.continuation import paths_of_texts

        self._keep_programs()
        return paths_of_texts(self._run, self.release, listed_texts(texts), rule)

    @missing_packages_named()
    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 64,
        path: int | None = None,
        rule: str | None = None,
        seed: int = 0,
        temperature: float = 1.0,
        **sampling: float,
    ) -> "Continuation":
        """Continues a prompt. `print` shows the whole text.

        Args:
          path: uses this path. None = the router's choice.
          rule: the rule of that choice. None = the run's `routing.rule`.
          seed: 0 to 2^63 - 1.
          temperature: the same as in `dipaco serve`. 0 = greedy.
          sampling: other fields of `SamplingSettings`: `top_k`, `top_p`, `min_p`,
            `repetition_penalty`.

        Raises:
          EmptyPrompt, ContextTooLong: the prompt has no token, or fills the context.
          HalfCharacter: the prompt has half of a surrogate pair.
          NoSuchPath, BadSetting, UnknownSetting: a value or a name cannot be used.
        """
        from dipaco.serving.continuation import continue_text

        prompt = one_text("prompt", prompt)
        max_tokens = whole_number("max_tokens", max_tokens, 1)
        seed = whole_number("seed", seed, 0, 2**63)
        drawn = {"temperature": temperature, **sampling}
        settings = sampling_of(drawn, ["max_tokens", "path", "rule", "seed"])
        self._keep_programs()
        release = self.release
        check_path(path, release)
        return continue_text(
            self._run,
            release,
            prompt,
            max_tokens=max_tokens,
            sampling=settings,
            seed=seed,
            path=path,
            rule=rule,
        )

    @missing_packages_named()
    def score(
        self,
        texts: str | Iterable[str],
        *,
        path: int | None = None,
        rule: str | None = None,
        beginnings: bool = False,
    ) -> dict[str, Any]:
        """Perplexity of any texts, equal to the result of `dipaco evaluate`.

        Args:
          texts: one document or several.
          path: scores all of them with this path. None = each document is routed.
          rule: the rule of routing. None = the run's `routing.rule`.
          beginnings: only the first window of each document counts, as in the report.

        Returns:
          `perplexity`, `bits_per_byte`, the number of scored `tokens` and `documents`, and their
          `paths`.

        Raises:
          NoTexts: there is no document, or all are empty.
          NothingToScore: no document is longer than the routing prefix.
          HalfCharacter: a text has half of a surrogate pair.
          NoSuchPath, NotAllPaths: a path cannot be used.
        """
        from dipaco.runs.reading.evaluate_texts import evaluate_texts

        self._keep_programs()
        release = self.release
        check_path(path, release)
        return evaluate_texts(
            self._run, release, listed_texts(texts), path, rule, beginnings=beginnings
        )

    @missing_packages_named()
    def plot(self, file: Path | str | None = None) -> Picture:
        """The report's picture: learning curves, and which domain went to which path. A notebook
        shows it. With `file` it is also written there (.png, .svg, .pdf). Raises `RunUnfinished`.
        """
        from dipaco.evaluation.plots import draw_report

        content = self.report.content
        picture = Picture(lambda file: draw_report(content, file))
        if file is not None:
            picture.save(file)
        return picture

    def close(self) -> None:
        """Closes the ledger. Must be called in the thread that opened it."""
        if not self._is_closed:
            self._run.ledger.close()
            self._is_closed = True

    def __enter__(self) -> Self:
        _ = self._run  # raises if it cannot be read
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._is_closed:
            return "\n".join((self._title("closed"), self._sizes()))
        if threading.get_ident() != self._thread:
            return "\n".join((self._title("opened by another thread"), self._sizes()))
        to_do = len(self._run.ledger.queue.unfinished())
        state = f"{counted(to_do, 'task')} to do" if to_do else "finished"
        rules = f"; {phrase(self._run.rules)}" if self._run.rules else ""
        return "\n".join((self._title(state + rules), self._sizes(), self._results()))

    def _title(self, state: str) -> str:
        return f"{self.config.name}, seed {self.config.seed}, in {self.folder}: {state}"

    def _sizes(self) -> str:
        topology = self.config.plan.arm(self.arm).topology
        total = sum(topology.module_sizes(part_parameters(self.config.model)).values())
        return (
            f"{self.arm}: {counted(topology.num_paths, 'path')} of "
            f"{num_parameters(self.config.model):,} "
            f"parameters, {counted(len(topology.modules), 'module')} of {total:,} in all"
        )

    def _results(self) -> str:
        try:
            release = self.release
        except NotAvailable:
            return "no release so far"
        newest = {each.arm: each.perplexity for each in self._run.ledger.facts.evaluations()}
        perplexities = ", ".join(f"{arm} {value:.2f}" for arm, value in newest.items())
        scored = f"; perplexity: {perplexities}" if perplexities else ""
        return f"release of phase {release.phase}, {release.digest[:10]}{scored}"

    def _keep_programs(self) -> None:
        from dipaco.runs.programs import use_compilation_cache

        use_compilation_cache()
