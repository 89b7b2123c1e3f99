"""What a path contributes to its modules: its outer gradients, encoded, and what that loses.

DiPaCo Algorithm 1, line 10.
"""

from collections.abc import Mapping
from typing import Any

from dipaco.control.tasks import Contribution, Fact
from dipaco.outer.compress import EncodedContribution, encode_rows
from dipaco.outer.gradient import outer_gradient
from dipaco.outer.vocabulary import sent_rows
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.store.tensors import save_tree
from dipaco.topology import ModuleId
from dipaco.workers.phase_start import PhaseStart


def contribute(
    run: Run,
    start: PhaseStart,
    after: Mapping[ModuleId, Any],
    started_from: Mapping[ModuleId, Receipt],
) -> tuple[list[Fact], dict[str, Any]]:
    """Encodes and saves what a path contributes at the end of a phase.

    Args:
      run: whose path it is.
      start: of its phase.
      after: module -> part -> parameters, as trained.
      started_from: module -> the parameters that it began with, as recorded.

    Returns:
      The path's contribution to each of its modules, and what the codec has lost of every part so
      far.
    """
    arm, path, phase = start.arm, start.claim.task.path, start.claim.task.phase
    contributions: list[Fact] = []
    residual: dict[str, Any] = {}
    for module, before in start.modules.items():
        encoded = _encoded(run, start, module, before, after[module])
        residual |= encoded.residual or {}
        # One folder per module and phase, which the outer step deletes as a whole.
        kind = f"messages/{arm.name}/{module}/{phase:06d}"
        contribution = Contribution(
            arm=arm.name,
            path=path,
            module=module,
            phase=phase,
            base_digest=started_from[module].digest,
            message=save_tree(run.objects, kind, encoded.message),
        )
        contributions.append(contribution)
    return contributions, residual


def _encoded(
    run: Run, start: PhaseStart, module: ModuleId, before: Any, after: Any
) -> EncodedContribution:
    residual, (path, phase) = start.residual, (start.claim.task.path, start.claim.task.phase)
    of_module = None if residual is None else {part: residual[part] for part in before}
    counts = run.counts_through(start.arm.name, module, phase)
    sent_V = None
    if counts is not None:
        sent_V = sent_rows(counts, start.arm.paths_through(module, phase).index(path))
    codec = run.codec_in(start.arm.name, phase)
    return encode_rows(codec, outer_gradient(before, after), of_module, sent_V)
