"""Addresses of runs: folders are taken as given, URLs checked, credentials refused."""

from pathlib import Path

import pytest

from dipaco.store.address import Address
from dipaco.store.errors import BadRun


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DIPACO_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("text", ["runs/one", "/data/runs/one", ".", "s3", "a:b"])
def test_a_folder_is_a_folder(text):
    address = Address.parse(text)
    assert (address.folder, address.url) == (Path(text), None)
    assert str(address) == text
    assert address.remote is None
    assert address.objects().root == Path(text)


@pytest.mark.parametrize("url", ["s3://bucket/one", "gs://my_bucket.eu/runs/2026/one-2"])
def test_a_url_has_a_folder_of_its_own_in_the_cache_folder(url, cache):
    address = Address.parse(url)
    assert str(address) == address.url == address.absolute == url
    assert address.folder.parent == cache / "runs"
    assert address.folder.name.startswith(url.rpartition("/")[2])
    assert address.place_of(address.folder / "report.md") == f"{url}/report.md"


def test_a_place_may_be_given_as_text_a_folder_or_an_address():
    address = Address.parse("s3://bucket/one")
    assert Address.of(address) is address
    assert Address.of("s3://bucket/one") == address
    assert Address.of("runs/one") == Address.of(Path("runs/one")) == Address(Path("runs/one"))


def test_a_url_that_has_become_a_path_is_refused():
    with pytest.raises(BadRun, match="of which a `Path` keeps one"):
        Address.of(Path("s3://bucket/one"))


def test_a_tilde_is_the_home_where_no_shell_has_put_it_in(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert Address.parse("~/run").folder == Path("/home/me/run")


def test_every_run_has_a_folder_of_its_own():
    folders = [
        Address.parse(f"s3://{place}").folder for place in ("a1b/run", "a1b/run/", "b1a/run")
    ]
    assert folders[0] == folders[1] != folders[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("http://host/run", "`http` is not a known store"),
        ("file:///data/run", "`file` is not a known store"),
        ("s3:bucket/run", "a URL has two slashes"),
        ("S3:/bucket/run", "a URL has two slashes"),
        ("s3://", "not a valid name of a bucket"),
        ("s3:///run", "not a valid name of a bucket"),
        ("s3://Bucket/run", "not a valid name of a bucket"),
        ("s3://bucket", "the run has no name"),
        ("s3://bucket/", "the run has no name"),
        ("s3://bucket//run", "cannot be part of a name"),
        ("s3://bucket/../run", "cannot be part of a name"),
        ("s3://bucket/run?x=1", "cannot be part of a name"),
        ("s3://bucket/a run", "cannot be part of a name"),
    ],
)
def test_an_invalid_address_is_a_sentence(text, problem):
    with pytest.raises(BadRun, match=problem):
        Address.parse(text)


def test_credentials_in_a_url_are_refused_and_not_repeated():
    with pytest.raises(BadRun, match="come from the environment") as raised:
        Address.parse("s3://KEY:SECRET@bucket/run")
    assert "SECRET" not in str(raised.value)
    assert "KEY" not in str(raised.value)
