"""Sources of documents: one URL-like string for each, read as a stream.

  packages:                  the text that published packages carry (`packages/`)
  text:GLOB                  text files. The domain is the folder's name, or `?domain=NAME`;
                             text:FOLDER is FOLDER/**/*.txt
  jsonl:GLOB                 JSON lines (also .gz, .bz2, .xz, .zst) with columns,
                             `?text=COLUMN&domain=COLUMN&group=COLUMN`
  parquet:GLOB               the same for Parquet
  hf:NAME[#CONFIG]           a data set of the Hugging Face hub, streamed, also `?split=train`
  toy:                       generated clusters (`toy.py`)

A group is never in two splits: a text file, a source file of a package, the documents with one
value of the group column, else the document itself. Where that value is null, the document is its
own group. Where a domain is null, it is the file's. A long document is cut into pieces of one
group. With `?group=piece`, each piece is a group. Text must be UTF-8: other bytes are refused,
naming the first bad one, since replaced characters would silently be trained on.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

from dipaco.data.document import BadRows, Document, Source, printable
from dipaco.data.rows import (
    Columns,
    SourceRow,
    documents_of,
    hub_rows,
    json_rows,
    parquet_rows,
)
from dipaco.data.slices import FilePart, SourcePart
from dipaco.data.source_url import SUFFIXES, SourceUrl, files_of, notes_of_files, parse_url
from dipaco.data.text_files import text_documents
from dipaco.errors import BadSource


def open_source(
    url: str,
    *,
    max_bytes_per_domain: int | None = None,
    say: Callable[[str], None] = lambda message: None,
    part: SourcePart | None = None,
    skip_bad_rows: bool = False,
) -> Source:
    """Opens a source.

    Args:
      max_bytes_per_domain: the caller uses no more, so a source may stop there. None = the
        source's own bound, which only `packages:` has.
      say: called with a sentence before what takes time, such as a download.
      part: the part of it to read. None = all.
      skip_bad_rows: rows that cannot be read are left out and counted. False = they are refused.

    Raises:
      BadSource: the kind is unknown, an option is, or no file matches.
    """
    source = parse_url(url)
    documents: Iterator[Document]
    files = files_of(source) if source.kind in SUFFIXES else []
    parts = [FilePart(file) for file in files] if part is None else list(part.files)
    whole = [each.file for each in parts]
    bad_rows = BadRows(are_skipped=skip_bad_rows)
    text, domain, group = (source.options.get(name) or None for name in Columns._fields)
    columns = Columns(text or "text", domain, group)
    match source.kind:
        case "packages":
            from dipaco.data.packages.source import open_packages

            _allow(source, ())
            return open_packages(max_bytes_per_domain=max_bytes_per_domain, say=say)
        case "toy":
            from dipaco.data.toy import toy_documents

            _allow(source, ("clusters", "documents", "words", "seed"))
            share = range if part is None or part.share is None else part.share.of
            options = {name: _whole(source, name) for name in source.options}
            documents = toy_documents(part=share, **options)
        case "text":
            _allow(source, ("domain", "group"))
            documents = text_documents(whole, domain, group, bad_rows)
        case "jsonl":
            _allow(source, ("text", "domain", "group"))
            documents = _by_file(parts, json_rows, columns, bad_rows)
        case "parquet":
            _allow(source, ("text", "domain", "group"))
            read = functools.partial(parquet_rows, columns=columns)
            documents = _by_file(parts, read, columns, bad_rows)
        case "hf":
            _allow(source, ("text", "domain", "group", "split"))
            documents = documents_of(hub_rows(source, columns), columns, bad_rows)
        case kind:
            raise BadSource(
                source=url,
                problem=f"`{kind}` is not a kind of source.",
                advice="Kinds: packages, text, jsonl, parquet, hf, toy.",
            )
    notes = []
    if source.kind in SUFFIXES and (part is None or part.is_first):
        notes = notes_of_files(source.place, SUFFIXES[source.kind], files)
    return Source(
        documents=documents,
        max_bytes_per_domain=max_bytes_per_domain,
        bad_rows={url: bad_rows},
        notes=notes,
    )


def _by_file(
    parts: Sequence[FilePart],
    read: Callable[[FilePart], Iterator[SourceRow]],
    columns: Columns,
    bad_rows: BadRows,
) -> Iterator[Document]:
    """The documents of the files' rows. Whole files without a good row are counted."""
    for part in parts:
        rows, bad = bad_rows.of, bad_rows.count
        yield from documents_of(read(part), columns, bad_rows)
        if part == FilePart(part.file) and bad_rows.of - rows == bad_rows.count - bad > 0:
            bad_rows.files += 1
            bad_rows.first_file = bad_rows.first_file or printable(str(part.file))


def _allow(source: SourceUrl, options: tuple[str, ...]) -> None:
    for option in source.options:
        if option not in options:
            known = ", ".join(options) or "none"
            raise BadSource(
                source=source.url,
                problem=f"`{option}` is not an option of `{source.kind}:`.",
                advice=f"Options: {known}.",
            )


def _whole(source: SourceUrl, option: str) -> int:
    try:
        if (number := int(source.options[option])) > 0 or option == "seed":
            return number
    except ValueError:
        pass
    advice = f"Write for example `?{option}=4`."
    problem = f"`{option}` must be a whole number, 1 or more."
    raise BadSource(source=source.url, problem=problem, advice=advice)
