"""Errors of this room: sources, corpora and shards that cannot be read. The docstring of a class is its message."""

from dipaco.errors import DipacoError, MachineFault


class BinaryText(DipacoError):
    """{file} is not UTF-8 text: {problem} at byte {offset}. Convert or remove the file, or leave such files out: `data.bad_rows=skip`."""

    is_lasting = True


class BinaryTexts(DipacoError):
    """{count} files are not UTF-8 text: {files}. Convert or remove them, or leave such files out: `data.bad_rows=skip`."""

    is_lasting = True


class BadRecord(DipacoError):
    """{file}, {place}: {problem}. Repair or remove that record, or leave such records out: `data.bad_rows=skip`."""

    is_lasting = True


class HalfCharacter(DipacoError):
    """A text holds {half}: it is no whole text, and no tokenizer can read it. Remove that half, or give the text as it was before it was cut there."""

    is_lasting = True


class MissingColumn(DipacoError):
    """{file}, {place}: {problem}. Repair it, or choose one with `?{option}=NAME`."""

    is_lasting = True


class NoGoodRow(DipacoError):
    """None of the {count} rows of `{source}` can be read. The first: {first}. Check the file and the options."""

    is_lasting = True


class BadTokenizer(DipacoError):
    """The tokenizer {file} cannot be used: {problem}. {advice}"""

    is_lasting = True


class EmptyCorpus(DipacoError):
    """The sources {sources} gave no text. Check that their files exist and are not empty."""

    is_lasting = True


class EmptySplit(DipacoError):
    """No document of more than {prefix_tokens} tokens fell into the split `{split}`, out of {documents} documents in {groups} groups ({short} are too short). {advice}"""

    is_lasting = True


class CorpusOfOtherSettings(MachineFault):
    """{folder} holds a corpus prepared with other settings: {difference}. Use another folder, or delete this one."""


class CorpusDamaged(MachineFault):
    """{file} is damaged: {problem}. Delete the folder {folder}; the command that began the run (`dipaco train`, for a row of a sweep `dipaco ablate`) prepares it again."""


class EmptyShard(DipacoError):
    """Path {path} has {documents} documents with {tokens} tokens: nothing to train on. Use fewer paths, more text, a lower `routing.capacity`, or a smaller `inner.hold_out`."""

    is_lasting = True


class ShardDamaged(DipacoError):
    """The shard {file} is damaged: {problem}. Restore it from a copy of the run folder."""

    is_lasting = True


def half_in_words(error: UnicodeEncodeError) -> str:
    """What of a text UTF-8 cannot write: `half of a character, '\\ud83d', after 'good morning '`. A
    byte of a file or an argument that is not UTF-8 has become one from `\\udc80` on (PEP 383).
    """
    text, start = error.object, error.start
    before, code = text[max(0, start - 20) : start], ord(text[start])
    what = f"half of a character, {text[start]!r}"
    if 0xDC80 <= code <= 0xDCFF:
        what = f"a byte that is not UTF-8, 0x{code - 0xDC00:02x}"
    return f"{what}, {f'after {before!r}' if start else 'at its start'}"
