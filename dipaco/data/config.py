"""Settings of the text: its sources, its splits, its tokenizer, and the length of a row."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Ge, Gt, Lt

from dipaco.data.source_url import check_kind
from dipaco.errors import BadSetting
from dipaco.processors import num_processors
from dipaco.settings import Count, Natural, check_values

BadRowsRule = Literal["refuse", "skip"]
END_OF_TEXT = "<|endoftext|>"  # every tokenizer that is trained here has it
# How widely used tokenizers spell the tokens at the start and the end of a text.
USUAL_EDGES = (
    (END_OF_TEXT, END_OF_TEXT),
    ("<s>", "</s>"),
    ("<bos>", "<eos>"),
    ("<|begin_of_text|>", "<|end_of_text|>"),
    ("<|im_start|>", "<|im_end|>"),
    ("[BOS]", "[EOS]"),
    ("[CLS]", "[SEP]"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where documents come from, and how they are split, tokenised and packed."""

    sources: tuple[str, ...] = ("packages:",)
    """Where the text comes from, read in this order: `packages:`, `text:GLOB`, `jsonl:GLOB`,
    `parquet:GLOB`, `hf:NAME#CONFIG` or `toy:`."""
    bad_rows: BadRowsRule = "refuse"
    """What becomes of rows that cannot be read, and of text files that are not UTF-8: `refuse` =
    the first ends the run, `skip` = they are left out, and the report counts them."""
    tokenizer: str | None = None
    """A tokenizer.json; None = one is trained on the training split. `--set` of it alone sets
    `model.vocab_size` to its size."""
    end_of_text: bool = True
    """Whether texts end with a token of their own, so that models learn to stop."""
    end_token: str | None = None
    """Name of the token that ends a text; None = that of a given tokenizer, else
    `<|endoftext|>`."""
    start_token: str | None = None
    """Name of the token that begins a text; None = that of a given tokenizer, else the end token;
    an empty name = texts begin with their first word."""
    tokenizer_sample_bytes: Count = 4_000_000
    """Bytes of text that the tokenizer is trained on; more gains little."""
    length: Annotated[int, Ge(2)] = 128
    """Tokens in a training row; also the tokens of a document that are scored."""
    held_fraction: Annotated[float, Gt(0), Lt(0.5)] = 0.05
    """Share of the groups of documents that is for `tune`, to choose settings by, and as much for
    `test`, which results are of; large enough for a corpus of a few megabytes."""
    router_fraction: Annotated[float, Gt(0), Lt(1)] = 0.05
    """Share of the groups of documents that fits the router alone and trains nothing; DiPaCo: 0.005
    of C4. A small corpus needs 50 documents a path."""
    prefix_tokens: Count = 32
    """Tokens at the head of a document or prompt that the router reads: its feature is their mean
    (DiPaCo section 2.4). They are given, and not counted in perplexity; only longer documents are
    evaluated."""
    max_bytes_per_domain: Count | None = None
    """Bytes of text that are taken of each domain; the rest is left out. None = 1,500,000 of
    `packages:`, all of every other source."""
    max_document_bytes: Annotated[int, Ge(64)] = 8192
    """Bytes of text of the longest document; longer ones become several of the same group."""
    slices: Count = 1
    """Tasks that share reading the text, as many that share making it tokens, and as many for the
    features of its documents, each done by any worker; all must see the same files. 1 = one task
    does each of them. About as many as workers. The result does not depend on it. Small models
    (`routing.kind`) read no features: one task trains them all."""
    processes: Natural = 0
    """Processes that tokenise; 0 = one for each CPU. The result does not depend on it."""

    def __post_init__(self):
        check_values(self, "data")
        if self.tokenizer is not None:  # No shell puts the home into `--set data.tokenizer=~/x`.
            object.__setattr__(self, "tokenizer", os.path.expanduser(self.tokenizer))

        def demand(holds: bool, name: str, expected: str) -> None:
            if not holds:
                raise BadSetting(name=f"data.{name}", value=getattr(self, name), expected=expected)

        listed = 'a tuple of them, as in ("text:notes",)'
        demand(not isinstance(self.sources, str), "sources", listed)
        demand(len(self.sources) > 0, "sources", "at least one source")
        for url in self.sources:
            check_kind(url)
        demand(self.end_token != "", "end_token", "a token's name, or None")
        demand(
            2 * self.held_fraction + self.router_fraction < 1,
            "router_fraction",
            "below 1 together with twice `data.held_fraction`, to leave documents to train on",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig(DataConfig):
    """The settings of `data`, and how many tokens the model knows: what a corpus is made by."""

    vocab_size: int  # of the tokenizer to train; a given one must fit into it


OF_SPEED = ("processes", "slices")  # settings that no result depends on
NOT_OF_THE_CORPUS = ("length", *OF_SPEED)  # settings that do not change the prepared bytes


def corpus_settings(config: CorpusConfig) -> dict[str, object]:
    """The settings that the bytes of a prepared corpus depend on, as JSON values."""
    settings = dataclasses.asdict(config) | {"sources": list(config.sources)}
    if config.tokenizer is not None and Path(config.tokenizer).is_file():
        # The file's content counts, not its path.
        content = Path(config.tokenizer).read_bytes()
        settings["tokenizer"] = hashlib.sha256(content).hexdigest()[:32]
    names = edge_names(config)
    settings |= {"start_token": names.start, "end_token": names.end}
    return {name: value for name, value in settings.items() if name not in NOT_OF_THE_CORPUS}


def name_in_full(name: str) -> str:
    """The whole name of one of the `corpus_settings`."""
    return "model.vocab_size" if name == "vocab_size" else f"data.{name}"


class EdgeNames(NamedTuple):
    """Spelling of the tokens that start and end a text. None = there is none."""

    start: str | None = None
    end: str | None = None


def edge_names(config: DataConfig) -> EdgeNames:
    """The start and end tokens that the settings ask for.

    These are `data.start_token` and `data.end_token`, else `bos_token` and `eos_token` of the
    tokenizer_config.json beside a given tokenizer, else its special tokens of usual names, else the
    end token, and `<|endoftext|>`.
    """
    if not config.end_of_text:
        return EdgeNames()
    beside = EdgeNames()
    if config.tokenizer is not None:
        beside = edge_names_beside(Path(config.tokenizer))
    end = config.end_token or beside.end or END_OF_TEXT
    if config.start_token is not None:
        return EdgeNames(config.start_token or None, end)
    return EdgeNames(beside.start or end, end)


def edge_names_beside(tokenizer_file: Path) -> EdgeNames:
    """`bos_token` and `eos_token` of the tokenizer_config.json beside a tokenizer.json. Without an
    `eos_token`, the first of the `USUAL_EDGES` whose end is one of its special tokens.
    """
    settings = read_object(tokenizer_file.with_name("tokenizer_config.json"))
    names = EdgeNames(spelled(settings.get("bos_token")), spelled(settings.get("eos_token")))
    if names.end is not None:
        return names
    added = read_object(tokenizer_file).get("added_tokens") or ()
    special = {token.get("content") for token in added if token.get("special")}
    for start, end in USUAL_EDGES:
        if end in special:
            return EdgeNames(names.start or (start if start in special else end), end)
    return names


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Empty if there is no such file, or something else in it."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


AnyConfig = TypeVar("AnyConfig", bound=DataConfig)


def data_from(config: AnyConfig, tokenizer_file: Path, names: EdgeNames) -> AnyConfig:
    """The settings with a tokenizer that another model was trained with, and the edge tokens of
    that model where the settings name none.
    """
    if config.end_of_text and (names.end is not None or names.start is not None):
        end = names.end if config.end_token is None else config.end_token
        start = (names.start or "") if config.start_token is None else config.start_token
        config = dataclasses.replace(config, end_token=end, start_token=start)
    return dataclasses.replace(config, tokenizer=str(tokenizer_file))


def spelled(token: Any) -> str | None:
    """A token is given as a text, or as an object with the text in `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def num_processes(config: DataConfig) -> int:
    """Number of processes that tokenise: as set, or one for each CPU that this process may use."""
    return config.processes or num_processors()
