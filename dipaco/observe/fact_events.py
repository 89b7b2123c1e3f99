"""The events of a finished task, made from its recorded facts, for people and the event file."""

from collections.abc import Iterator

import msgspec

from dipaco.config import MODULAR, RunConfig
from dipaco.control.planning.summaries import Alternated, Prepared, Rerouted, Routed
from dipaco.control.planning.tasks import (
    Claim,
    Evaluated,
    Fact,
    ModuleReady,
    PathTrained,
    Sampled,
    StageDone,
)
from dipaco.observe.events import Event, Value
from dipaco.observe.terminal import head, tail
from dipaco.plural import largest

PROMPT_WIDTH, TEXT_WIDTH = 24, 72  # characters of a sample in an event; its fact has the whole


def fact_events(fact: Fact, claim: Claim, config: RunConfig, seconds: float) -> Iterator[Event]:
    """The events of one fact. A fact that only other tasks need has none.

    Args:
      fact: a fact that the task recorded.
      claim: the claim of the task.
      config: the run's config.
      seconds: seconds since the task started.
    """
    match fact:
        case StageDone(stage="prepare"):
            yield from _corpus(fact)
        case StageDone(stage="route"):
            if fact.phase:
                yield _alternation(fact)
            yield from _shards(fact)
        case StageDone(stage="reroute"):
            yield from _rerouting(fact, config)
        case PathTrained() if fact.losses:  # a base model that is already trained takes no step
            yield _path(fact, config)
        case ModuleReady() if claim.task.kind == "outer":
            yield _module(fact, config, seconds)
        case Evaluated():
            yield _evaluation(fact, config)
        case Sampled(arm=arm) if arm == MODULAR:
            yield from _samples(fact)


def _corpus(fact: StageDone) -> Iterator[Event]:
    corpus = Prepared.of(fact)
    yield Event(
        "corpus_prepared",
        {
            "documents": sum(corpus.documents.values()),
            "tokens": corpus.tokens,
            "domains": len(corpus.domains),
            "seconds": fact.seconds,
        },
    )
    for domain, reason in corpus.left_out.items():
        yield Event("domain_left_out", {"domain": domain, "reason": reason}, "warning")
    for note in corpus.notes:
        yield Event("corpus_note", {"note": note})


def _alternation(fact: StageDone) -> Event:
    routed = Alternated.of(fact)
    return Event(
        "documents_rerouted",
        {
            "phase": fact.phase + 1,
            "agreement": routed.agreement,
            "agreement_after": routed.agreement_after,
            "moved": routed.moved,
        },
    )


def _shards(fact: StageDone) -> Iterator[Event]:
    routed = Routed.of(fact)
    shards = zip(routed.documents, routed.domains, strict=True)
    for path, (count, by_domain) in enumerate(shards):
        fields: dict[str, Value] = {
            "path": path,
            "documents": count,
            "share": count / max(sum(routed.documents), 1),
            "domains": largest(by_domain, 3),
        }
        yield Event("shard_built", fields)
    if routed.outside_bounds:
        yield Event("shards_outside_bounds", {"how": routed.outside_bounds}, "warning")


def _rerouting(fact: StageDone, config: RunConfig) -> Iterator[Event]:
    summary = Rerouted.of(fact)
    if (loss := summary.hold_out_loss) is not None:
        steps = {"step": summary.step, "steps": config.reroute.steps}
        yield Event("router_kept", {**steps, "hold_out_loss": loss})
    for row in summary.rows:
        if row.every is not None:
            yield Event("rerouted", msgspec.structs.asdict(row))


def _path(fact: PathTrained, config: RunConfig) -> Event:
    norms: dict[str, Value] = {}
    if fact.norms is not None:
        norms = {"gradient_norm": fact.norms.mean, "largest_gradient_norm": fact.norms.largest}
    fields: dict[str, Value] = {
        "arm": fact.arm,
        "path": str(fact.path),
        "phase": fact.phase + 1,
        "phases": config.plan.arm(fact.arm).phases,
        "step": fact.step,
        "steps": len(fact.losses),
        "tokens": fact.tokens,
        "loss": fact.losses[-1],
        "mean_loss": sum(fact.losses) / len(fact.losses),
        **norms,
        "tokens_per_second": fact.tokens / max(fact.seconds, 1e-9),
        "megabytes_exchanged": (fact.bytes_down + fact.bytes_up) / 1e6,
        "seconds": fact.seconds,
    }
    return Event("path_trained", fields)


def _module(fact: ModuleReady, config: RunConfig, seconds: float) -> Event:
    if fact.gradient_norm is None:
        return Event("module_unchanged", {"phase": fact.phase, "module": str(fact.module)})
    arm = config.plan.arm(fact.arm)
    cosines: dict[str, Value] = {}
    if fact.gradient_stats is not None:
        num_contributions = len(fact.gradient_stats.norms)
        cosines["cosine"] = fact.gradient_stats.cosine
    else:
        num_contributions = len(arm.contributors(fact.module, fact.phase - 1))
    fields: dict[str, Value] = {
        "arm": fact.arm,
        "module": str(fact.module),
        "phase": fact.phase,
        "arrived": num_contributions,
        "fan_in": arm.topology.fan_in(fact.module),
        "norm": fact.gradient_norm,
        **cosines,
        "seconds": seconds,
    }
    return Event("module_updated", fields)


def _samples(fact: Sampled) -> Iterator[Event]:
    for sample in fact.samples:
        fields: dict[str, Value] = {
            "arm": fact.arm,
            "phase": fact.phase,
            "path": sample.path,
            "domain": sample.domain,
            "prompt": tail(sample.prompt, PROMPT_WIDTH),
            "text": head(sample.text, TEXT_WIDTH),
        }
        yield Event("sampled", fields)


def _evaluation(fact: Evaluated, config: RunConfig) -> Event:
    fields: dict[str, Value] = {
        "arm": fact.arm,
        "phase": fact.phase,
        "step": config.plan.arm(fact.arm).steps_before(fact.phase),
        "perplexity": fact.perplexity,
        "documents": fact.documents,
    }
    return Event("evaluated", fields)
