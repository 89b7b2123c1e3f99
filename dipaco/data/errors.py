"""Errors of this room: sources, corpora and shards that cannot be read. The docstring of a class is its message."""

from dipaco.errors import LastingError, MachineFault


class BinaryText(LastingError):
    """{file} is not UTF-8 text: {problem} at byte {offset}. Convert or remove the file, or leave such files out: `data.bad_rows=skip`."""


class BinaryTexts(LastingError):
    """{count} files are not UTF-8 text: {files}. Convert or remove them, or leave such files out: `data.bad_rows=skip`."""


class BadRecord(LastingError):
    """{file}, {place}: {problem}. Repair or remove that record, or leave such records out: `data.bad_rows=skip`."""


class HalfCharacter(LastingError):
    """A text holds {half}: it is no whole text, and no tokenizer can read it. Remove that half, or give the text as it was before it was cut there."""


class MissingColumn(LastingError):
    """{file}, {place}: {problem}. Repair it, or choose one with `?{option}=NAME`."""


class NoGoodRow(LastingError):
    """None of the {count} rows of `{source}` can be read. The first: {first}. Check the file and the options."""


class BadTokenizer(LastingError):
    """The tokenizer {file} cannot be used: {problem}. {advice}"""


class EmptyCorpus(LastingError):
    """The sources {sources} gave no text. Check that their files exist and are not empty."""


class EmptySplit(LastingError):
    """No document of more than {prefix_tokens} tokens fell into the split `{split}`, out of {documents} documents in {groups} groups ({short} are too short). {advice}"""


class CorpusOfOtherSettings(MachineFault):
    """{folder} holds a corpus prepared with other settings: {difference}. Use another folder, or delete this one."""


class CorpusDamaged(MachineFault):
    """{file} is damaged: {problem}. Delete the folder {folder}; the command that began the run (`dipaco train`, for a row of a sweep `dipaco ablate`) prepares it again."""


class EmptyShard(LastingError):
    """Path {path} has {documents} documents with {tokens} tokens: nothing to train on. Use fewer paths, more text, a lower `routing.capacity`, or a smaller `inner.hold_out`."""


class ShardDamaged(LastingError):
    """The shard {file} is damaged: {problem}. Restore it from a copy of the run folder."""


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
