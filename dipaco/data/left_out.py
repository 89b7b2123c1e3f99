"""Text that is not in a corpus, the reason, and a remedy, in sentences."""

import numpy as np
from rich.filesize import decimal

from dipaco.data.config import CorpusConfig, DataConfig
from dipaco.data.document import BadRows
from dipaco.data.errors import EmptySplit
from dipaco.data.merging import Documents
from dipaco.data.near_duplicates import SPAN, Pieces
from dipaco.data.packages.source import MAX_BYTES_PER_DOMAIN
from dipaco.data.source_url import SUFFIXES, parse_url
from dipaco.data.splits import HELD, SPLITS
from dipaco.data.tokenizer import Tokenizer
from dipaco.plural import counted

LEAST_USED_SHARE = 0.5  # of a vocabulary
SMALL_VOCABULARY = 1024  # most of it are single bytes
MOST_NAMED = 3  # domains in a sentence


def notes_of_left_out(config: DataConfig, documents: Documents, num_short: int) -> list[str]:
    """A sentence for each reason, none if everything is in the corpus.

    Args:
      num_short: number of documents too short for their split, `tune`, `test` or `router`.
    """
    notes = [note_of_bad_rows(*each) for each in documents.facts.bad_rows.items() if each[1].count]
    if documents.facts.bytes_over:
        notes.append(_over_the_bound(config, documents))
    if num := int((~documents.is_kept).sum()):
        num_bytes = int(documents.num_bytes[~documents.is_kept].sum(dtype=np.int64))
        all_bytes = int(documents.num_bytes.sum(dtype=np.int64))
        notes.append(
            f"Left out, since an earlier document has the same text: {counted(num, 'document')}, "
            f"{decimal(num_bytes)} of {decimal(all_bytes)}."
        )
    if num_short:
        notes.append(
            f"Left out, since no longer than the {config.prefix_tokens} tokens that the router "
            f"reads: {counted(num_short, 'document')} drawn for tune, for test or for the router."
        )
    return notes


def note_of_bad_rows(url: str, bad_rows: BadRows) -> str:
    rows = "files" if parse_url(url).kind == "text" else "rows"
    files = counted(bad_rows.files, "file")
    lost = f" Nothing is left of {files}, such as {bad_rows.first_file}." if bad_rows.files else ""
    return (
        f"Left out, since they cannot be read: {bad_rows.count:,} of "
        f"{bad_rows.of:,} {rows} of `{url}`. The first: {bad_rows.first}.{lost}"
    )


def notes_of_near_duplicates(pieces: Pieces) -> list[str]:
    """A sentence on spans of training documents that held documents have as well, if there are."""
    if not pieces.tokens_in_spans:
        return []
    if not pieces.tokens_left_out:
        return [
            f"Of the training text, {pieces.tokens_in_spans / pieces.train_tokens:.0%} is in spans "
            f"of {SPAN} tokens that documents of tune or test have as well. So much is not left "
            "out: this text repeats itself."
        ]
    return [
        f"Left out, since documents of tune or test have {SPAN} tokens in a row of it: "
        f"{pieces.tokens_left_out / pieces.train_tokens:.2%} of the training text, of "
        f"{counted(pieces.num_cut, 'document')}."
    ]


def notes_of_unknown(tokenizer: Tokenizer, num_unknown: int, lengths: np.ndarray) -> list[str]:
    """A sentence on unknown tokens, and one on documents without any token, if there are such.

    Args:
      num_unknown: number of tokens that stand for text that the tokenizer cannot spell.
    """
    num_tokens, num_empty = int(lengths.sum(dtype=np.int64)), int((lengths == 0).sum())
    notes = []
    if num_unknown:
        token = tokenizer.library.id_to_token(tokenizer.unknown_id)
        notes.append(
            f"Of {counted(num_tokens, 'token')}, {num_unknown:,} ({num_unknown / num_tokens:.1%}) "
            f"are `{token}`: the given tokenizer cannot spell that text."
        )
    if num_empty:
        notes.append(
            f"Of {counted(len(lengths), 'document')}, {num_empty:,} "
            f"({num_empty / len(lengths):.1%}) have no token: the given tokenizer drops their text."
        )
    return notes


def notes_of_vocabulary(config: CorpusConfig, num_used: int) -> list[str]:
    """A sentence if a tokenizer that was trained here leaves most of the model's ids unused."""
    share = num_used / config.vocab_size
    is_small = config.vocab_size <= SMALL_VOCABULARY
    if config.tokenizer is not None or share >= LEAST_USED_SHARE or is_small:
        return []
    return [
        f"Of the model's {config.vocab_size:,} ids, {num_used:,} ({share:.1%}) occur in the text. "
        "Rows of the embedding for the others are never trained: lower `model.vocab_size`, or give "
        f"the tokenizer more text (`data.tokenizer_sample_bytes={config.tokenizer_sample_bytes}`)."
    ]


def _over_the_bound(config: DataConfig, documents: Documents) -> str:
    names, num_bytes_over = documents.facts.domain_names, documents.facts.bytes_over
    read = np.bincount(documents.domains, documents.num_bytes, minlength=len(names))
    read_of = dict(zip(names, read.astype(np.int64).tolist(), strict=True))
    over = sorted(num_bytes_over.items(), key=lambda item: -item[1])
    parts = [
        f"{decimal(left)} of {decimal(left + read_of.get(domain, 0))} of `{domain}`"
        for domain, left in over[:MOST_NAMED]
    ]
    if rest := over[MOST_NAMED:]:
        others = counted(len(rest), "other domain")
        parts.append(f"{decimal(sum(left for _, left in rest))} of {others}")
    bound = decimal(config.max_bytes_per_domain or MAX_BYTES_PER_DOMAIN)
    if config.max_bytes_per_domain is None:
        bound += ", for `packages:` alone"
    return f"Left out, beyond `data.max_bytes_per_domain` ({bound}): {', '.join(parts)}."


def count_splits(config: DataConfig, documents: Documents, splits: np.ndarray) -> dict[str, int]:
    """Number of documents by split.

    Raises:
      EmptySplit: a split has none. Only `short` may be empty.
    """
    counts = {name: int((splits == code).sum()) for code, name in enumerate(SPLITS)}
    for split in ("train", *HELD, "router"):
        if not counts[split]:
            raise EmptySplit(
                split=split,
                advice=_advice_for_empty_split(config, split, documents.num_groups),
                prefix_tokens=config.prefix_tokens,
                documents=len(splits),
                groups=documents.num_groups,
                short=counts["short"],
            )
    return counts


def _advice_for_empty_split(config: DataConfig, split: str, num_groups: int) -> str:
    """A sentence on the settings that would fill a split without documents."""
    if split == "train":
        advice = "Lower `data.held_fraction` or `data.router_fraction`"
    else:
        name = "router_fraction" if split == "router" else "held_fraction"
        fraction = getattr(config, name)
        advice = (
            f"About {fraction * num_groups:.1f} groups were to be expected: raise "
            f"`data.{name}` ({fraction:g})"
        )
    whole = [url for url in config.sources if _can_split_pieces(url)]
    if whole:
        mark = "&" if "=" in whole[0].rpartition("?")[2] else "?"
        return (
            f"{advice}, or add text, or let each piece of a text stand by itself: "
            f"`{whole[0]}{mark}group=piece`."
        )
    return (
        f"{advice}, or add text, or cut it into more pieces by a lower `data.max_document_bytes` "
        f"({config.max_document_bytes:,})."
    )


def _can_split_pieces(url: str) -> bool:
    source = parse_url(url)
    return source.kind in (*SUFFIXES, "hf") and "group" not in source.options
