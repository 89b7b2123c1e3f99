"""Files are written whole or not at all, and known by the digest of their bytes."""

import errno
import os
from pathlib import Path

import pytest
import xxhash

from dipaco import files
from dipaco.errors import DiskFull
from dipaco.files import file_digest, install_file, write_atomically, write_new, write_whole


@pytest.fixture
def full_disk(monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(os, "fsync", fail)


def test_the_digest_of_a_file_is_that_of_its_bytes_over_several_chunks(tmp_path):
    content = os.urandom((1 << 22) * 2 + 17)
    (tmp_path / "file").write_bytes(content)
    assert file_digest(tmp_path / "file") == xxhash.xxh3_128(content).hexdigest()


def test_a_report_is_replaced_whole_or_stays(tmp_path, full_disk):
    file = tmp_path / "deep" / "report.json"
    write_atomically(file, b"first")
    write_atomically(file, b"second")
    assert file.read_bytes() == b"second"
    full_disk()
    with pytest.raises(DiskFull, match=r"report\.json"):
        write_atomically(file, b"third")
    assert list(file.parent.iterdir()) == [file]
    assert file.read_bytes() == b"second"


def test_a_file_of_one_writer_is_replaced_whole_or_stays(tmp_path, full_disk):
    file = tmp_path / "corpus.json"
    write_whole(file, lambda stream: stream.write(b"first"))
    (tmp_path / "corpus.json.partial").write_bytes(b"of a killed attempt")
    write_whole(file, lambda stream: stream.write(b"second"))
    assert list(tmp_path.iterdir()) == [file]
    full_disk()
    with pytest.raises(DiskFull, match=r"corpus\.json"):
        write_whole(file, lambda stream: stream.write(b"third"))
    assert file.read_bytes() == b"second"


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_that_write_a_new_file_the_first_does(tmp_path, monkeypatch, has_links):
    if not has_links:

        def link(*_):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", link)
    file = tmp_path / "deep" / "marker"
    assert write_new(file, b"first")
    assert not write_new(file, b"second")
    assert file.read_bytes() == b"first"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_gets_its_name_when_its_bytes_are_on_the_disk(tmp_path, monkeypatch):
    """Else a power cut leaves a whole name with zeros in it."""
    happened, replace = [], Path.replace
    monkeypatch.setattr(files, "flush", lambda place: happened.append(f"flush {place.name}"))

    def renamed(old, new):
        happened.append(f"rename {old.name} to {new.name}")
        return replace(old, new)

    monkeypatch.setattr(Path, "replace", renamed)
    (tmp_path / "partial").write_bytes(b"bytes")
    install_file(tmp_path / "partial", tmp_path / "final")
    write_whole(tmp_path / "whole", lambda stream: stream.write(b"bytes"))
    assert happened == [
        *("flush partial", "rename partial to final", f"flush {tmp_path.name}"),
        *("flush whole.partial", "rename whole.partial to whole", f"flush {tmp_path.name}"),
    ]
