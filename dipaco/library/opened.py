"""An opened run, to be asked from Python: its results, its release, its modules, its text."""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dipaco.caches import cache_folder
from dipaco.config import RunConfig
from dipaco.control.errors import NotAvailable
from dipaco.control.release import Release
from dipaco.control.tasks import Sampled
from dipaco.errors import BadSetting, UnknownSetting
from dipaco.library.errors import ModuleNotReleased, NoSuchModule, RunUnfinished
from dipaco.library.picture import Picture
from dipaco.library.report import RunReport
from dipaco.model.config import num_parameters, part_parameters
from dipaco.plural import counted
from dipaco.runs.opening import open_run
from dipaco.runs.releases import check_arm, check_path, find_release
from dipaco.runs.rules import phrase
from dipaco.runs.run import Run
from dipaco.store.address import Address
from dipaco.store.tensors import load_tree
from dipaco.topology import ModuleId

if TYPE_CHECKING:
    import numpy as np

    from dipaco.serving.continuation import Continuation

MOST_LISTED = 16  # modules in an error


def open(folder: Path | str, *, arm: str = "modular", phase: int | None = None) -> "OpenedRun":
    """Opens a run for reading, finished or not.

    Args:
      folder: the run's folder, or s3://BUCKET/NAME, gs://BUCKET/NAME.
      arm: whose modules are read: modular, dense, dense_equal_tokens, data_parallel or base.
      phase: the release of this phase; None = the newest, whenever it is asked for.

    Raises:
      NoSuchRun, FolderHoldsSweep, RunOfOtherVersion: there is no run that can be read.
      NoSuchArm: the run has no such arm.
    """
    run = open_run(Address.parse(str(folder)))
    try:
        check_arm(run, arm)
    except BaseException:
        run.ledger.close()
        raise
    return OpenedRun(run, arm, phase)


class OpenedRun:
    """A run that is read; nothing here changes it. Also a context manager, which closes it.

    Its ledger belongs to the thread that opened it.

    Attributes:
      arm, phase: which releases are read; phase None = the newest.
    """

    def __init__(self, run: Run, arm: str = "modular", phase: int | None = None):
        self._run = run
        self.arm, self.phase = arm, phase

    @property
    def folder(self) -> str:
        """Its folder or URL."""
        return str(self._run.address)

    @property
    def config(self) -> RunConfig:
        """All of its settings."""
        return self._run.config

    @property
    def is_finished(self) -> bool:
        """Whether every task is done."""
        return self._run.ledger.queue.is_finished()

    @property
    def report(self) -> RunReport:
        """The table that `dipaco train` prints, curves and notes. Raises `RunUnfinished`."""
        from dipaco.workers.tasks.report import make_report

        unfinished = self._run.ledger.queue.unfinished()
        if unfinished:
            raise RunUnfinished(folder=self.folder, unfinished=len(unfinished))
        return RunReport(make_report(self._run))

    @property
    def release(self) -> Release:
        """The consistent set of modules that is read. Raises `NotAvailable`: none so far."""
        return find_release(self._run, self.arm, self.phase)

    @property
    def samples(self) -> tuple[Sampled, ...]:
        """What each release of the arm made of the run's prompts, phases ascending; of `phase`
        alone, if it is set. Empty in a run without `samples.prompts`.
        """
        sampled = self._run.ledger.facts.samples(self.arm)
        return tuple(each for each in sampled if self.phase in (None, each.phase))

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of its modules: early/0000, ..."""
        return tuple(map(str, self._run.plan.arm(self.arm).topology.modules))

    def module(self, name: str, *, path: int | None = None) -> dict[str, Any]:
        """The parameters of a module in the release: part -> tree of arrays.

        Args:
          name: as in `modules`.
          path: as this path has it; only matters in a run whose paths stop early.

        Raises:
          NoSuchModule, BadModuleId, NoSuchPath: there is none of that name on that path.
          ModuleNotReleased: paths hold it at different phases; `path` says which is meant.
        """
        release, module = self.release, str(ModuleId.parse(name))
        check_path(path, release)
        paths = range(len(release.paths)) if path is None else (path,)
        held = {release.paths[p][module]: p for p in paths if module in release.paths[p]}
        if not held:
            known = sorted({each for p in paths for each in release.paths[p]})
            more = f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
            raise NoSuchModule(module=name, known=", ".join(known[:MOST_LISTED]) + more)
        if len(held) > 1:
            raise ModuleNotReleased(module=name, paths=", ".join(map(str, sorted(held.values()))))
        return load_tree(self._run.objects, release.objects[next(iter(held))])

    def path(self, number: int) -> dict[str, Any]:
        """The parameters of a whole path in the release: part -> tree of arrays. Raises
        `NoSuchPath`, or `BadSetting` for what is no number.
        """
        release = self.release
        check_path(number, release)
        return self._run.path_of(release, number)

    def route(self, texts: str | Sequence[str], *, rule: str | None = None) -> "np.ndarray":
        """The path of each text by its first tokens.

        Args:
          texts: one, or N of them.
          rule: `features` or `likelihood`; None = the run's `routing.rule`.

        Returns:
          int32 [N].

        Raises:
          EmptyPrompt, HalfCharacter: a text has no token, or what is no character.
          ReleaseOfOtherRouter, NotAllPaths: the release cannot be routed to.
        """
        from dipaco.serving.continuation import paths_of_texts

        self._keep_programs()
        return paths_of_texts(self._run, self.release, _listed(texts), rule)

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
        """Continues a prompt; `print` shows the whole text.

        Args:
          prompt: the text to continue.
          max_tokens: the most tokens to make.
          path: uses this one; None = the router's choice.
          rule: by which it is chosen; None = the run's `routing.rule`.
          seed: of the draws.
          temperature: as in `dipaco serve`; 0 = greedy.
          sampling: `top_k`, `top_p`, `min_p`, `repetition_penalty`, as `SamplingSettings` has them.

        Raises:
          EmptyPrompt, ContextTooLong: the prompt has no token, or fills the context.
          HalfCharacter: there is in it what is no character.
          NoSuchPath, BadSetting, UnknownSetting: a value or a name cannot be used.
        """
        from dipaco.serving.continuation import continue_text
        from dipaco.serving.decoding.sampling import SamplingSettings

        if max_tokens < 1:
            raise BadSetting(name="max_tokens", value=max_tokens, expected="1 or more")
        others = [field.name for field in dataclasses.fields(SamplingSettings)]
        _check_names(sampling, others, ["max_tokens", "path", "rule", "seed"])
        settings = SamplingSettings(temperature=temperature, **sampling)  # ty: ignore[invalid-argument-type]
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

    def score(
        self,
        texts: str | Iterable[str],
        *,
        path: int | None = None,
        rule: str | None = None,
        beginnings: bool = False,
    ) -> dict[str, Any]:
        """Perplexity of any texts, as `dipaco evaluate` gives it.

        Args:
          texts: documents; a single one, or as many as wanted.
          path: scores all of them; None = each is routed.
          rule: by which they are routed; None = the run's `routing.rule`.
          beginnings: only the first window of each document counts, as in the report.

        Returns:
          `perplexity`, and over how many `tokens` and `documents` of which `paths` it is.

        Raises:
          NoTexts: there is none, or nothing in them.
          NothingToScore: no document is longer than the routing prefix.
          HalfCharacter: there is in a text what is no character.
          NoSuchPath, NotAllPaths: a path cannot be used.
        """
        from dipaco.runs.evaluate_texts import evaluate_texts

        self._keep_programs()
        release = self.release
        check_path(path, release)
        return evaluate_texts(self._run, release, _listed(texts), path, rule, beginnings=beginnings)

    def plot(self, file: Path | str | None = None) -> Picture:
        """The report's picture: learning curves, and which domain went to which path. A notebook
        shows it; with `file` it is also written there (.png, .svg, .pdf). Raises `RunUnfinished`.
        """
        from dipaco.evaluation.plots import draw_report

        content = self.report.content
        picture = Picture(lambda file: draw_report(content, file))
        if file is not None:
            picture.save(file)
        return picture

    def close(self) -> None:
        """Closes its ledger."""
        self._run.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __repr__(self) -> str:
        return "\n".join((self._title(), self._sizes(), self._results()))

    def _title(self) -> str:
        config, to_do = self.config, len(self._run.ledger.queue.unfinished())
        state = f"{to_do} {'task' if to_do == 1 else 'tasks'} to do" if to_do else "finished"
        rules = f"; {phrase(self._run.rules)}" if self._run.rules else ""
        return f"{config.name}, seed {config.seed}, in {self.folder}: {state}{rules}"

    def _sizes(self) -> str:
        topology = self._run.plan.arm(self.arm).topology
        in_part = part_parameters(self.config.model)
        total = sum(in_part[part] for m in topology.modules for part in topology.parts_of(m))
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

        use_compilation_cache(cache_folder() / "compiled")


def _listed(texts: str | Iterable[str]) -> list[str]:
    """Raises `BadSetting`: they are no texts."""
    listed = [texts] if isinstance(texts, str) else texts
    listed = list(listed) if isinstance(listed, Iterable) else [listed]
    for each in listed:
        if not isinstance(each, str):
            raise BadSetting(name="texts", value=each, expected="a text, or several")
    return listed


def _check_names(given: Iterable[str], known: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raises `UnknownSetting`: a name that is not known. One of `others`, which were taken before,
    may be meant.
    """
    for name in given:
        if name not in known:
            known = (*known, *others)
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"Did you mean `{near[0]}`?" if near else f"There are {', '.join(known)}."
            raise UnknownSetting(name=name, hint=f" {meant}")
