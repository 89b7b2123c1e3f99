"""`dipaco dashboard`: a file of a run, errors as sentences, and a process beside another."""

import contextlib
import re
import time
import urllib.request

import pytest

from dipaco.cli.dashboard import beside
from dipaco.cli.errors import BadKeyFile
from dipaco.cli.main import main
from dipaco.cli.options import read_keys
from dipaco.control.errors import NotAvailable
from dipaco.dashboard import page
from dipaco.data.errors import CorpusDamaged
from dipaco.errors import CorpusMissing


def test_a_run_is_written_to_one_file(tiny, tmp_path, capsys):
    file = tmp_path / "new" / "page.html"
    assert main(["dashboard", "--run", str(tiny.folder), "--export", str(file)]) == 0
    assert str(file) in capsys.readouterr().out
    content = file.read_text("utf-8")
    assert content.count("</html>") == 1
    assert 'id="recording"' in content
    assert not re.search(r"(src|href)=[\"']https?:", content), "nothing is fetched"
    assert main(["dashboard", "--run", str(tmp_path / "nowhere"), "--export", str(file)]) == 2
    assert "NoSuchRun" in capsys.readouterr().err
    assert file.read_text("utf-8") == content


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (CorpusDamaged(file="tokens", problem="it is short", folder="corpus"), "it is short"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (CorpusMissing(folder="corpus"), ""),
        (NotAvailable(what="stage `route`"), ""),
    ],
    ids=lambda each: type(each).__name__,
)
def test_texts_that_cannot_be_read_are_left_out_and_a_fault_is_said(
    tiny, tmp_path, monkeypatch, caplog, fault, said
):
    """There may be none, or not on this machine: that is no fault."""

    def fails(run):
        raise fault

    monkeypatch.setattr(page, "Texts", fails)
    file = tmp_path / "page.html"
    assert main(["dashboard", "--run", str(tiny.folder), "--export", str(file)]) == 0
    assert 'id="recording"' in file.read_text("utf-8")
    assert said in caplog.text
    assert ("The page is without the texts" in caplog.text) == bool(said)


@pytest.mark.parametrize("name", [".", "/", "folder"])
def test_a_folder_is_no_name_of_a_page(tiny, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert main(["dashboard", "--run", str(tiny.folder), "--export", name]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"PageIsFolder: {name} is a folder.")
    assert list(tmp_path.rglob("*")) == [tmp_path / "folder"]


def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(tmp_path):
    file = tmp_path / "keys"
    for bad in ("se\tcret", "se\0cret", "se\x7fcret", "se\u00a0cret", "se\u200bcret"):
        file.write_text(f"good\n{bad}\n", encoding="utf-8")
        with pytest.raises(BadKeyFile, match="line 2") as caught:
            read_keys(file)
        assert "cret" not in str(caught.value)
    file.write_text("\ufeffgood\n\n two words \nключ\n", encoding="utf-8")
    assert read_keys(file) == ("good", "two words", "ключ")


def test_a_wrong_port_or_key_file_is_said_before_anything_is_served(tiny, tmp_path, capsys):
    pytest.importorskip("starlette", reason="the server needs the `serve` extra")
    run = ["dashboard", "--run", str(tiny.folder)]
    assert main([*run, "--port", "70000"]) == 2
    assert "--port" in capsys.readouterr().err
    assert main([*run, "--api-key-file", str(tmp_path / "none")]) == 2
    assert "BadKeyFile" in capsys.readouterr().err


def test_beside_a_run_it_says_its_address_and_ends_with_it(tiny, capfd):
    pytest.importorskip("starlette", reason="the dashboard needs the `serve` extra")
    said = ""
    with beside(str(tiny.folder), 0):
        while not (found := re.search(r"http://\S+", said)):
            said += capfd.readouterr().out
            time.sleep(0.05)
        with urllib.request.urlopen(found[0], timeout=60) as answer:
            assert b"dipaco" in answer.read()
    with contextlib.suppress(OSError):
        urllib.request.urlopen(found[0], timeout=1)
        raise AssertionError("it is still there")
    with beside("nowhere", None):
        """Nothing is started."""
