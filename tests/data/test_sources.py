"""Sources: what they read, how they group it, and the errors for what cannot be read."""

import bz2
import errno
import gzip
import json
import lzma
import os
import re
import sys
from functools import partial
from math import nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.data.config import DataConfig
from dipaco.data.document import BadRows, Document, cut_text
from dipaco.data.errors import BadRecord, BinaryText, BinaryTexts, MissingColumn
from dipaco.data.left_out import note_of_bad_rows
from dipaco.data.slices import cut_into_slices
from dipaco.data.source_url import notes_of_files, parse_url, sources_of
from dipaco.data.sources import open_source
from dipaco.errors import BadSource


@pytest.fixture
def pyarrow():
    pytest.importorskip("pyarrow.parquet", reason="pyarrow, of the extra `train`, is not installed")
    import pyarrow

    return pyarrow


def documents(url: str):
    return list(open_source(url).documents)


def test_options_follow_a_question_mark_that_a_glob_may_also_hold():
    assert parse_url("text:a?c/*.txt").place == "a?c/*.txt"
    source = parse_url("jsonl:a?c/*.jsonl?text=body&domain=lang")
    assert (source.place, source.options) == ("a?c/*.jsonl", {"text": "body", "domain": "lang"})
    toy = parse_url("toy:?clusters=2&words=3")
    assert (toy.place, toy.options) == ("", {"clusters": "2", "words": "3"})


@pytest.mark.parametrize("name", ["x[1]*?", "what?a=b", "50%?#{a}", "a\\b", "**", "line\nend"])
def test_a_file_of_any_name_is_read_by_it(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.txt").write_text("text")
    (url,) = sources_of(str(tmp_path / name))
    urls = [url] if "?a=" in name else [url, f"text:{tmp_path}/{name}/*.txt"]
    for each in urls:
        assert [found.domain for found in documents(each)] == [name]


def test_binary_text_is_refused_with_the_file_and_the_offset_of_the_byte(tmp_path):
    junk = "é".encode() * 700_000 + b"\n\xff\xfe"
    (tmp_path / "junk.txt").write_bytes(junk)
    with pytest.raises(BinaryText, match=r"junk\.txt .*0xff.* at byte 1400001"):
        documents(f"text:{tmp_path}/junk.txt")


def test_all_files_that_are_no_text_are_in_one_error(tmp_path):
    for name, data in {
        "a": b"ok",
        "b": b"\xff",
        "c": b"caf\xe9 noir",
        "d": b"",
        "e": b"\0",
    }.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    expected = r"3 files .*b\.txt \(0xff.* at byte 0\), .*c\.txt .* byte 3\), .*e\.txt \(a zero"
    with pytest.raises(BinaryTexts, match=expected):
        documents(f"text:{tmp_path}/*.txt")


def test_json_lines_give_text_domain_and_group_by_column(tmp_path):
    rows = [{"body": "one", "lang": "en", "book": 7}, {"body": "two", "lang": "de", "book": 8}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = documents(f"jsonl:{tmp_path}/a.jsonl?text=body&domain=lang&group=book")
    assert found == [Document("one", "en", "7"), Document("two", "de", "8")]


def test_a_domain_may_be_any_value_and_without_one_it_is_the_files_name(tmp_path):
    domains = [0, "0", False, 7, "", " \u3000", None]
    rows = [{"text": "x", "domain": domain} for domain in domains]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"text": "x"}])))
    found = [document.domain for document in documents(f"jsonl:{tmp_path}/a.jsonl")]
    assert found == ["0", "0", "False", "7", "a", "a", "a", "a"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_null_names_no_group_and_no_domain(request, tmp_path, kind):
    """Nor do NaN and an empty text. All of them would be one group, in one split, or one domain."""
    file = tmp_path / f"essays.{kind}"
    columns = {
        "text": ["a", "b", "c", "d"],
        "by": ["Ada", None, None, ""],
        "y": [1.5, None, nan, 0],
    }
    if kind == "parquet":
        pyarrow = request.getfixturevalue("pyarrow")
        pyarrow.parquet.write_table(pyarrow.table(columns), file)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        file.write_text("\n".join(map(json.dumps, rows)))
    found = documents(f"{kind}:{file}?domain=by&group=by")
    assert [document.domain for document in found] == ["Ada", "essays", "essays", "essays"]
    assert [document.group for document in found] == ["Ada", None, None, None]
    found = documents(f"{kind}:{file}?domain=y&group=y")
    last = "0.0" if kind == "parquet" else "0"
    assert [document.domain for document in found] == ["1.5", "essays", "essays", last]
    assert [document.group for document in found] == ["1.5", None, None, last]


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst"])
def test_compressed_json_lines_are_read_and_a_damaged_file_is_refused(request, tmp_path, ending):
    if ending == "zst":
        compress = partial(request.getfixturevalue("pyarrow").compress, codec="zstd", asbytes=True)
    else:
        compress = {"gz": gzip, "bz2": bz2, "xz": lzma}[ending].compress
    file = tmp_path / f"a.jsonl.{ending}"
    whole = compress(b'{"text": "hello"}\n' * 50_000)
    file.write_bytes(whole)
    assert documents(f"jsonl:{tmp_path}/*.{ending}") == [Document("hello", "a")] * 50_000
    assert sources_of(str(file)) == [f"jsonl:{file}"]
    for damaged in (whole[:-20], b"x" + whole):
        file.write_bytes(damaged)
        with pytest.raises(BadSource, match="came whole"):
            documents(f"jsonl:{file}")


@pytest.mark.parametrize("column", ["text", "domain"])
def test_half_of_a_character_is_named(tmp_path, column):
    """JSON can spell it, UTF-8 cannot; it would be trained on as something else."""
    fine = '{"text": "whole: \\ud83d\\ude00", "domain": "\\u00e4"}\n'
    (tmp_path / "a.jsonl").write_text(fine)
    assert documents(f"jsonl:{tmp_path}/a.jsonl") == [Document("whole: 😀", "ä")]
    row = {"text": "x", "domain": "y", column: "cut: \ud83d"}
    (tmp_path / "a.jsonl").write_text(f"{fine}{json.dumps(row)}\n")
    said = rf"line 2: column `{column}` holds half of a character, '\\ud83d', after 'cut: '\."
    with pytest.raises(BadRecord, match=said):
        documents(f"jsonl:{tmp_path}/a.jsonl")


def test_a_missing_column_says_which_there_are(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n\n{"body": "x"}\n')
    with pytest.raises(MissingColumn, match="line 3: no column `text`; it has `body`"):
        documents(f"jsonl:{tmp_path}/a.jsonl")
    (tmp_path / "b.jsonl").write_text(json.dumps(dict.fromkeys(map(str, range(3000)))))
    with pytest.raises(MissingColumn, match=r"it has `0`, .*`19` and 2,980 more") as error:
        documents(f"jsonl:{tmp_path}/b.jsonl")
    assert len(str(error.value)) < 500


def test_an_option_without_a_value_is_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    for kind, options in (("jsonl", "text=&domain=&group="), ("text", "domain=&group=")):
        found = documents(f"{kind}:{tmp_path}/a.jsonl?{options}")
        assert found == documents(f"{kind}:{tmp_path}/a.jsonl")


def test_parquet_is_read_by_column_and_a_cut_file_is_refused(pyarrow, tmp_path):
    table = pyarrow.table({"text": ["a", "b"], "domain": ["x", "y"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert documents(f"parquet:{tmp_path}/a.parquet") == [Document("a", "x"), Document("b", "y")]
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-4])
    with pytest.raises(BadSource, match=r"a\.parquet"):
        documents(f"parquet:{tmp_path}/a.parquet")
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", compression="none")
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[5:40] = b"\x77" * 35
    (tmp_path / "a.parquet").write_bytes(damaged)
    with pytest.raises(BadSource, match=r"thrift.*\(row 0 or a later one\)") as error:
        documents(f"parquet:{tmp_path}/a.parquet")
    assert "\n" not in str(error.value)


def test_only_the_columns_that_are_asked_for_are_read(pyarrow, tmp_path, monkeypatch):
    """What else is in a file may be anything: times that Python has not, bytes, long numbers."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    latin = pyarrow.Array.from_buffers(
        pyarrow.string(), 2, pyarrow.array([b"caf\xe9", b"b"]).buffers()
    )
    columns = {
        "text": ["one", "two"],
        "nanoseconds": pyarrow.array([1, 2], pyarrow.timestamp("ns")),
        "year_0": pyarrow.array([-(10**17), 0], pyarrow.timestamp("us")),
        "latin": latin,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert documents(f"parquet:{tmp_path}/a.parquet") == [
        Document("one", "a"),
        Document("two", "a"),
    ]
    deep = b"[" * 100_000 + b"]" * 100_000
    lines = [
        b'{"text": "one", "other": ' + b"7" * 5000 + b"}",
        b'{"other": {"[}\\"": ' + deep + b', "text": 1}, "text": "two", "n": [1, {"a": "]"}]}',
        b'{"text": "three", "other": "caf\xe9", "score": NaN}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    found = documents(f"jsonl:{tmp_path}/a.jsonl")
    assert found == [Document(text, "a") for text in ("one", "two", "three")]
    names = [d.group for d in documents(f"parquet:{tmp_path}/a.parquet?group=nanoseconds")]
    assert names == [f"1970-01-01 00:00:00.00000000{n}" for n in (1, 2)]
    (first, _) = documents(f"parquet:{tmp_path}/a.parquet?group=year_0")
    assert first.group.startswith("-1199-")
    for time in ("nanoseconds", "year_0"):
        with pytest.raises(BadRecord, match=f"row 0: column `{time}` holds .*, not text"):
            documents(f"parquet:{tmp_path}/a.parquet?text={time}")


NOT_READABLE = {
    "not JSON": (b"{broken", "not JSON"),
    "no object": (b'["text"]', "not a JSON object"),
    "null": (b'{"text": null}', "column `text` holds NoneType, not text"),
    "number": (b'{"text": ' + b"1" * 5000 + b"}", "holds Decimal, not text"),
    "no column": (b'{"body": "x"}', "no column `text`; it has `body`"),
    "half": (rb'{"text": "\ud83d"}', "column `text` holds half of a character"),
    "latin": (b'{"text": "caf\xe9"}', "a byte that is not UTF-8, 0xe9, after 'caf'"),
    "deep": (b'{"text": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "holds list, not text"),
    "deep and broken": (b'{"text": ' + b"[" * 50_000, "not JSON"),
    "bytes": (b"\xff\xfe\x00", "no UTF-8 either: it may be compressed under another ending"),
    "old line ends": (b'{"text": "a"}\r{"text": "b"}', "carriage returns alone end its lines"),
}


@pytest.mark.parametrize("kind", NOT_READABLE)
def test_a_row_that_cannot_be_read_is_named_or_left_out_and_counted(tmp_path, kind):
    line, said = NOT_READABLE[kind]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b'\n{"text": "good"}\n')
    url = f"jsonl:{tmp_path}/a.jsonl"
    with pytest.raises((BadRecord, MissingColumn), match=f"a.jsonl, line 2: .*{re.escape(said)}"):
        documents(url)
    source = open_source(url, skip_bad_rows=True)
    assert [document.text for document in source.documents] == ["fine", "good"]
    bad = source.bad_rows[url]
    assert (bad.count, bad.of) == (1, 3)
    assert "a.jsonl, line 2: " in bad.first
    assert said in bad.first


def test_values_of_parquet_that_cannot_be_read_are_named_or_left_out(pyarrow, tmp_path):
    texts = pyarrow.array([b"one", b"caf\xe9", b"three", None])
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 4, texts.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    url = f"parquet:{tmp_path}/a.parquet"
    with pytest.raises(BadRecord, match=r"a\.parquet, row 1: column `text` cannot be read: .*0xe9"):
        documents(url)
    source = open_source(url, skip_bad_rows=True)
    assert [document.text for document in source.documents] == ["one", "three"]
    assert (source.bad_rows[url].count, source.bad_rows[url].of) == (2, 4)
    with pytest.raises(MissingColumn, match=r"no column `body`; it has `text`"):
        documents(f"{url}?text=body")


@pytest.mark.parametrize("slices", [1, 3])
def test_a_file_without_a_good_row_is_said(tmp_path, slices):
    """Its few bad rows would be lost among those of other files."""
    for name, text in {
        "a": '{"text": "fine"}\n\n' * 40 + "bad\n",
        "b": '{"text": "x"}\r' * 99,
        "c": "",
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "d.jsonl").write_text("bad\n" * 9)
    url = f"jsonl:{tmp_path}"
    config = DataConfig(sources=(url,), bad_rows="skip")
    bad = BadRows()
    for parts in cut_into_slices(config, slices)[0]:
        for part in parts:
            source = open_source(url, part=part, skip_bad_rows=True)
            assert all(document.text == "fine" for document in source.documents)
            bad = bad.plus(source.bad_rows[url])
    assert (bad.count, bad.of) == (11, 51)
    files = "2 files, such as b.jsonl" if slices == 1 else "1 file, such as d.jsonl"  # b is cut
    note = note_of_bad_rows(url, bad).replace(f"{tmp_path}/", "")
    assert note.endswith(f" Nothing is left of {files}.")


def test_files_that_are_no_text_are_left_out_and_counted(tmp_path):
    for name, data in {"a": b"ok", "b": b"fine\xff", "c": b"\0"}.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    source = open_source(f"text:{tmp_path}", skip_bad_rows=True)
    assert [document.text for document in source.documents] == ["ok"]
    (bad,) = source.bad_rows.values()
    assert (bad.count, bad.of) == (2, 3)
    assert bad.first.endswith("b.txt, byte 4: 0xff (invalid start byte)")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("txt:a", "`txt` is not a kind"),
        ("text:/no/such/*.txt", "no file matches"),
        ("toy:?cluster=3", "`cluster` is not an option"),
        ("toy:?clusters=three", "must be a whole number"),
        ("toy:?clusters=0", "must be a whole number, 1 or more"),
        ("toy:?documents=-1", "must be a whole number, 1 or more"),
        (f"text:{'a' * 300}", "no file matches"),
        ("jsonl:/dev/null", "what `/dev/null` names is no file"),
        ("hf:", "names no data set"),
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_source_is_a_sentence(url, expected):
    with pytest.raises(BadSource, match=expected):
        documents(url)


def test_a_folder_is_all_files_below_it_that_end_like_its_kind(tmp_path):
    for name in ("b/two.txt", "a-b/one.txt", "b/c/three.txt", "b/four.md", ".hidden/five.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = [document.text for document in documents(f"text:{tmp_path}")]
    assert found == [document.text for document in documents(f"text:{tmp_path}/**/*.txt")]
    assert found == ["a-b/one.txt", "b/c/three.txt", "b/two.txt"]
    with pytest.raises(BadSource, match=r"no file that ends with \.jsonl .*/\*\*/\*\.md"):
        documents(f"jsonl:{tmp_path}")


@pytest.mark.parametrize("place", ["", "/**/*.txt", "/**", "/*/**/*.txt", "/**/[bc]/**/*.txt"])
def test_a_folder_is_read_once_however_many_links_lead_to_it(tmp_path, place):
    for name in ("b/one.txt", "b/c/two.txt"):
        (tmp_path / "text" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / name).write_text(name)
    (tmp_path / "elsewhere/d").mkdir(parents=True)
    (tmp_path / "elsewhere/d/three.txt").write_text("three")
    for link, target in {"a": ".", "b/up": "..", "z": "b", "b/far": tmp_path / "elsewhere"}.items():
        (tmp_path / "text" / link).symlink_to(target, target_is_directory=True)
    found = documents(f"text:{tmp_path}/text{place}")
    names = [document.group.removeprefix(f"{tmp_path}/text/") for document in found]
    assert sorted(n.rpartition("/")[2] for n in names) == ["one.txt", "three.txt", "two.txt"]
    if not place.startswith("/*/"):  # which begins with the link `a`
        assert names == ["b/c/two.txt", "b/far/d/three.txt", "b/one.txt"]


def test_what_is_no_file_is_said_to_be_none():
    with pytest.raises(BadSource, match="What has this name is a pipe or a device"):
        sources_of("/dev/null")


@pytest.mark.parametrize("url", ["text:", "jsonl:?text=body"])
def test_a_source_without_a_place_is_not_the_whole_disk(url):
    with pytest.raises(BadSource, match="names no file or folder"):
        open_source(url)


def test_links_that_lead_nowhere_are_counted(tmp_path):
    """As to a disk that is not mounted: its text would be missing without a word."""
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two.txt").symlink_to("/not/mounted/two.txt")
    (tmp_path / "books").symlink_to("/not/mounted", target_is_directory=True)
    expected = (
        "Not read: 2 links to what is not there, such as `{}/books`.",
        "Not read: 1 link to ",
    )
    for place, says in zip(("", "/*.txt"), expected, strict=True):
        source = open_source(f"text:{tmp_path}{place}")
        assert len(list(source.documents)) == 1
        assert source.notes[0].startswith(says.format(tmp_path))


def test_a_folder_below_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "sealed").mkdir()
    scandir = os.scandir

    def refuse(folder="."):
        if str(folder).endswith("sealed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read whatever its mode
    for place in ("", "/**/*.txt"):
        with pytest.raises(BadSource, match=r"`.*sealed` cannot be read: Permission denied"):
            documents(f"text:{tmp_path}{place}")


def test_the_name_of_a_file_need_not_be_text(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    Path(os.fsdecode(name)).write_text('{"text": "one"}\n')
    (document,) = documents(f"jsonl:{tmp_path}/caf*.jsonl")
    assert ascii(document.domain) == ascii("caf\udce9")  # What reads it makes it printable.


def test_what_is_passed_over_in_a_folder_and_what_is_empty_is_said(tmp_path):
    for name in ("one.txt", "b/two.txt", "b/nil.txt", "b/c/a.py", "b/b.py", "d.md", "LICENSE"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if "nil" in name else name)
    others, empty = open_source(f"text:{tmp_path}").notes
    assert "read: 3 .txt. Not read: 2 .py, 1 .md, 1 without an ending." in others
    assert f"`{tmp_path}/**/*.py` names others" in others
    assert empty == f"1 file is empty, such as `{tmp_path}/b/nil.txt`."
    assert open_source(f"text:{tmp_path}/**/*.txt").notes == [empty]
    assert open_source(f"text:{tmp_path}/one.txt").notes == []
    assert "Not read: 1 " in notes_of_files(str(tmp_path), (".txt", ".py", ".md"))[0]


def test_what_is_named_without_a_kind_is_read_by_the_suffix_of_each_file(tmp_path):
    (tmp_path / "a[1].jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "b.txt").write_text("y")
    (tmp_path / "c.md").write_text("z")

    def texts(place):
        return [document.text for url in sources_of(str(place)) for document in documents(url)]

    assert texts(tmp_path / "a[1].jsonl") == ["x"]
    assert texts(tmp_path / "c.md") == texts(tmp_path / "*.md") == ["z"]
    assert texts(tmp_path) == texts(tmp_path / "*[lt]") == ["x", "y"]
    assert sources_of("jsonl:a.jsonl?text=body") == ["jsonl:a.jsonl?text=body"]
    for nothing in (tmp_path / "d.txt", tmp_path / "*.rst"):
        with pytest.raises(BadSource, match="no such file"):
            sources_of(str(nothing))


@given(st.text(alphabet="ab \nאé漢😀", max_size=600), st.integers(64, 200))
def test_cutting_loses_nothing_and_keeps_the_bound(text, max_bytes):
    pieces = list(cut_text(text, max_bytes))
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= max_bytes for piece in pieces)


def test_the_toy_corpus_is_the_same_each_time_and_its_clusters_share_no_words():
    first, again = documents("toy:?documents=8"), documents("toy:?documents=8")
    assert first == again
    words = {d.domain: set[str]() for d in first}
    for document in first:
        words[document.domain] |= set(document.text.split())
    assert len(words) == 4
    assert not words["toy_00"] & words["toy_01"]


def test_a_data_set_of_the_hub_is_streamed(pyarrow, tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "tales"  # `datasets` takes a folder for a name, so no network is needed
    folder.mkdir()
    columns = {"text": ["a fox", "an owl"], "domain": ["woods", "barn"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "train-00000.parquet")

    assert documents(f"hf:{folder}") == [Document("a fox", "woods"), Document("an owl", "barn")]
    with pytest.raises(BadSource, match="Check the name"):
        documents(f"hf:{folder}?split=absent")


def test_a_domain_of_bytes_is_their_text(pyarrow, tmp_path):
    rows = {"text": ["one", "two"], "domain": [b"caf\xc3\xa9", b"caf\xe9"]}
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table(rows), file)
    found = iter(open_source(f"parquet:{file}").documents)
    assert next(found).domain == "café"
    with pytest.raises(BadRecord, match="not UTF-8"):
        list(found)
