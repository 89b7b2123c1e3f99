"""Checks across rooms: settings that are fine by themselves and do not fit each other."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dipaco.errors import BadSetting, SettingsDisagree
from dipaco.model.config import MESH_AXES
from dipaco.routing.config import LIKELIHOOD, SMALL_MODELS

if TYPE_CHECKING:
    from dipaco.config.run_config import RunConfig

LEAST_VOCABULARY = 257


def check(config: "RunConfig") -> None:
    """Raises `SettingsDisagree` for settings of rooms that do not fit each other."""
    if config.model.vocab_size < LEAST_VOCABULARY:
        raise BadSetting(
            name="model.vocab_size",
            value=config.model.vocab_size,
            expected=f"{LEAST_VOCABULARY} or more (256 bytes and one reserved id)",
        )
    if not config.data.prefix_tokens < config.data.length <= config.model.max_length:
        raise SettingsDisagree(
            problem=f"`data.length` is {config.data.length}; it must be above "
            f"`data.prefix_tokens` ({config.data.prefix_tokens}) and at most "
            f"`model.max_length` ({config.model.max_length})"
        )
    if config.data.length % config.inner.loss_chunks:
        raise SettingsDisagree(
            problem=f"`inner.loss_chunks` is {config.inner.loss_chunks}, and rows of "
            f"`data.length` ({config.data.length}) tokens cannot be cut into that many equal "
            "lengths"
        )
    for arm in (config.plan.base, *config.plan.arms):
        if 0 < arm.total_steps <= config.inner.warmup_steps:
            raise SettingsDisagree(
                problem=f"`inner.warmup_steps` is {config.inner.warmup_steps}, and "
                f"`{arm.name}` takes only {arm.total_steps} steps: warm up for fewer, or "
                "train longer"
            )
    room = config.model.max_length - config.data.prefix_tokens
    if config.samples.prompts and config.samples.tokens > room:
        raise SettingsDisagree(
            problem=f"`samples.tokens` is {config.samples.tokens}, and after a prompt of "
            f"`data.prefix_tokens` the context of `model.max_length` has room for {room}"
        )
    if (num_devices := config.mesh.num_devices) is not None:
        check_mesh(config, dict(zip(MESH_AXES, config.mesh.shape(num_devices), strict=True)))
    _check_kernel(config)
    _check_paths(config)
    _check_synchronous(config)
    _check_delay(config)
    _check_retention(config)
    if config.routing.kind in ("product_kmeans", SMALL_MODELS) and not config.topology.choices:
        raise SettingsDisagree(
            problem=f"`routing.kind` is {config.routing.kind}, but the topology offers no choice:"
            " use kmeans"
        )


def check_effects(config: "RunConfig") -> None:
    """For a run that is to begin: raises `BadSetting` for a setting that would have no effect. One
    that was recorded with it is opened as before.
    """
    data = config.data
    if not data.end_of_text:
        for name in ("end_token", "start_token"):
            if value := getattr(data, name):
                expected = "None beside `data.end_of_text=false`: texts have no such token then"
                raise BadSetting(name=f"data.{name}", value=value, expected=expected)


def check_mesh(config: "RunConfig", sizes: Mapping[str, int]) -> None:
    """Raises `SettingsDisagree` for batches that a mesh cannot divide.

    Args:
      config: of the run.
      sizes: devices along each axis of its mesh.
    """
    inner = config.inner
    rows = inner.batch_size // inner.accumulation_steps
    pieces = math.prod(sizes[axis] for axis in config.mesh.rules.batch)
    if rows % pieces:
        raise SettingsDisagree(
            problem=f"{rows} rows (`inner.batch_size` / `inner.accumulation_steps`) cannot be "
            f"divided among the {pieces} devices of the mesh that share a batch"
        )


def _check_kernel(config: "RunConfig") -> None:
    """cuDNN's attention takes masks of even rows (`attend_fused`)."""
    if config.model.attention_kernel != "cudnn":
        return
    if config.data.length % 2:
        raise SettingsDisagree(
            problem=f"`model.attention_kernel` is cudnn, which takes rows of an even length, and "
            f"`data.length` is {config.data.length}; auto takes the plain kernel"
        )


def _check_synchronous(config: "RunConfig") -> None:
    """Refuses settings of contributions, or of single paths, beside `outer.synchronous`."""
    without_meaning = {
        "outer.path_share": config.outer.path_share != 1,
        "outer.codec": config.outer.codec != "none",
        "outer.quorum": config.outer.quorum != 1,
        "outer.vocabulary_rows": config.outer.vocabulary_rows != "documents",
        "outer.delay": config.outer.delay > 0,
        "routing.alternations": bool(config.routing.alternations),
        "inner.hold_out": config.inner.hold_out > 0,
        "inner.freeze_absent_tokens": config.inner.freeze_absent_tokens,
    }
    for name, is_set in without_meaning.items():
        if config.outer.synchronous and is_set:
            raise SettingsDisagree(
                problem=f"`outer.synchronous` is on, and so is `{name}`; paths that step "
                "together do without it"
            )


def _check_delay(config: "RunConfig") -> None:
    """A path takes late modules inside a phase, by itself."""
    delay, steps = config.outer.delay, config.inner.steps
    if delay >= steps:
        raise SettingsDisagree(
            problem=f"`outer.delay` is {delay}, and a phase has `inner.steps` ({steps}) steps: "
            "modules are taken within it, so delay fewer"
        )


def _check_retention(config: "RunConfig") -> None:
    """Refuses too few modules for paths whose snapshots are sent now and then."""
    keep = config.retention
    if config.outer.path_share < 1 < keep.send_snapshots_every and keep.modules is not None:
        raise SettingsDisagree(
            problem=f"`retention.send_snapshots_every` is {keep.send_snapshots_every}, and "
            f"`retention.modules` {keep.modules}: with `outer.path_share` below 1 many phases "
            "may lie between two of a path's, which it may have to train again from the "
            "modules of then; expected None for all"
        )


def _check_paths(config: "RunConfig") -> None:
    """Checks settings that count paths and phases against the topology and `phases`."""
    routing, num_paths = config.routing, config.num_paths
    if routing.overlap > num_paths:
        raise SettingsDisagree(
            problem=f"`routing.overlap` is {routing.overlap}, and there are {num_paths} paths"
        )
    if routing.shortlist is not None and routing.shortlist > num_paths:
        raise SettingsDisagree(
            problem=f"`routing.shortlist` is {routing.shortlist}, and there are {num_paths} "
            "paths; None compares them all"
        )
    if routing.rule == LIKELIHOOD and routing.alternations:
        if routing.shortlist is not None and routing.overlap > routing.shortlist:
            raise SettingsDisagree(
                problem=f"`routing.overlap` is {routing.overlap}, and `routing.shortlist` "
                f"{routing.shortlist}: documents train paths of their shortlists"
            )
        if routing.target_share is not None:
            raise SettingsDisagree(
                problem="`routing.target_share` is set, and `routing.rule` is likelihood: it "
                "is what the discriminative router keeps to; use `routing.capacity` and "
                "`routing.floor`"
            )
    if any(phase > config.phases for phase in routing.alternations):
        raise SettingsDisagree(
            problem=f"`routing.alternations` are {routing.alternations}, and there are "
            f"{config.phases} phases"
        )
    if routing.alternations and num_paths == 1:
        raise SettingsDisagree(
            problem="`routing.alternations` are set, and the topology has one path: there is "
            "nothing to route"
        )
    if config.reroute.every and (num_paths == 1 or not config.evaluation.best_path):
        raise SettingsDisagree(
            problem="`reroute.every` needs more than one path, and every document scored under "
            "all of them: `evaluation.best_path=true`"
        )
    share = routing.target_share
    if share is not None and not routing.alternations:
        raise SettingsDisagree(
            problem="`routing.target_share` is set, and `routing.alternations` are not: it is "
            "what the discriminative router keeps to"
        )
    if share is not None and len(share) != num_paths:
        raise SettingsDisagree(
            problem=f"`routing.target_share` has {len(share)} shares, and there are "
            f"{num_paths} paths"
        )
