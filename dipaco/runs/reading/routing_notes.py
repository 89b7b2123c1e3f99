"""Sentences of the report about routing: which path takes a document, and what that costs."""

from collections.abc import Sequence

from dipaco.config import MODULAR, RunConfig
from dipaco.control.planning.summaries import Rerouted, Routed
from dipaco.evaluation.ensembles import TEMPERATURE
from dipaco.evaluation.tables import quantity
from dipaco.model.config import flops_per_token
from dipaco.routing.config import LIKELIHOOD, RANDOM, SMALL_MODELS
from dipaco.routing.shard_sizes import sentence_on_bounds, wider_router_fraction
from dipaco.runs.run import Run
from dipaco.runs.small_models import small_config


def note_on_routing(config: RunConfig) -> str:
    """Says by which rule a document is routed, what the other row is, and what each costs."""
    ways = (_by_router(config), _by_paths(config))
    set_to, other = reversed(ways) if config.routing.rule == LIKELIHOOD else ways
    note = f"modular routes a document {set_to}"
    # Without the scores of all paths there is no other row.
    return f"{note}; the row beside it {other}." if config.evaluation.best_path else f"{note}."


def _by_router(config: RunConfig) -> str:
    prefix_tokens, flops = config.data.prefix_tokens, quantity(_flops_of_router(config))
    if config.routing.kind == RANDOM:
        return "at random"
    if config.routing.kind == SMALL_MODELS:
        return (
            f"by the likelihood of its first {prefix_tokens} tokens under {config.num_paths} small "
            f"models ({flops} flops)"
        )
    return (
        f"by features, for which the base model reads its first {prefix_tokens} tokens "
        f"({flops} flops)"
    )


def _by_paths(config: RunConfig) -> str:
    prefix_tokens, compared = (
        config.data.prefix_tokens,
        config.routing.num_compared(config.num_paths),
    )
    flops = _flops_of_router(config) + compared * prefix_tokens * _flops(config)
    read, in_all = ("read them too", " in all")
    if config.routing.kind == RANDOM:
        read, in_all = f"read its first {prefix_tokens} tokens", ""
    return (
        f"by likelihood, for which {compared} of {config.num_paths} paths {read} "
        f"({quantity(flops)} flops{in_all})"
    )


def note_on_ensembles(config: RunConfig) -> str:
    """Says what an ensemble mixes, and what each predicted token costs."""
    paths = config.num_paths
    return (
        "modular_ensemble mixes the predictions of all paths by their posterior given the first "
        f"tokens (temperature {TEMPERATURE:g}), at {paths} forward passes a token; "
        f"modular_ensemble_2 those of the two likeliest, at 2, once all {paths} have read the "
        "first tokens; modular_ensemble_renewed all, the posterior renewed at every token, at "
        f"{paths}. path size is what a prediction reads: all "
        "modules, for modular_ensemble_2 at most those of two paths."
    )


def sentence_on_shards(run: Run, documents: Sequence[int], phase: int) -> str:
    """Names shards outside their bounds, if any. A router of one's own has no bounds."""
    if "router" in run.rules:
        return ""
    outside = sentence_on_bounds(run.config.routing, documents, phase)
    if not outside:
        return ""
    fraction = run.config.data.router_fraction
    num_train = len(run.corpus.documents("train"))  # overlapping shards have more together
    wider = wider_router_fraction(fraction, num_train, len(documents))
    if wider is not None:
        outside += f" `data.router_fraction` is {fraction:g} here: try {wider:g} in a new run."
    return outside


def notes_on_bounds(run: Run) -> list[str]:
    """Says which shards are outside their bounds, if any are."""
    outside = Routed.of(run.routing_of(MODULAR, run.config.phases)).outside_bounds
    return [f"Shards outside their bounds: {outside}"] if outside else []


def notes_on_rerouting(run: Run) -> list[str]:
    """Says what changing the path within a document costs."""
    summary = Rerouted.of(run.stage("reroute"))
    costs = "; ".join(
        f"every {row.every} tokens: {row.switches:,} changes, "
        f"{row.tokens_read_again / row.tokens:.2f} tokens read again for each predicted"
        for row in summary.rows
        if row.every is not None
    )
    kept = ""
    if summary.hold_out_loss is not None:  # runs of older versions have none
        kept = (
            f" That router is kept as it was after {summary.step:,} of "
            f"{run.config.reroute.steps:,} steps, when it did best on documents that did not train "
            "it."
        )
    return [
        "modular_every_N asks a router again after every N tokens; a path that takes over reads "
        f"the text again from its beginning ({costs}).{kept}"
    ]


def _flops(config: RunConfig) -> int:
    """Operations of one path for one token of a prefix."""
    return flops_per_token(config.model, config.data.prefix_tokens, training=False)


def _flops_of_router(config: RunConfig) -> int:
    """Operations of the base model without its head, or of all small models, for a prefix."""
    prefix_tokens = config.data.prefix_tokens
    if config.routing.kind == RANDOM:
        return 0
    if config.routing.kind == SMALL_MODELS:
        small = small_config(config.model, prefix_tokens)
        each = flops_per_token(small, prefix_tokens, training=False)
        return prefix_tokens * config.num_paths * each
    return prefix_tokens * (_flops(config) - 2 * config.model.vocab_size * config.model.d_model)
