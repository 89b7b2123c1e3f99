"""`dipaco push` and `pull`, with a stand-in of the Hugging Face Hub's API: `tests/support/hub.py`.
The hub itself was not asked, nor was anything sent by Xet.
"""

import errno
import shlex

import pytest

from tests.support.hub import LARGE, serving_hub

constants = pytest.importorskip("huggingface_hub.constants", reason="needs the `hub` extra")
errors = pytest.importorskip("huggingface_hub.errors")
# The library sends files in a way that its own HTTP client advises against.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAME, PLACE = "we/quickstart", "hf://we/quickstart"


@pytest.fixture
def hub(monkeypatch):
    with serving_hub() as hub:
        hub.repositories[NAME] = [{".gitattributes": b"", "notes.txt": b"mine"}]
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        monkeypatch.setenv("HF_TOKEN", "writer")
        yield hub


@pytest.fixture
def exported(tmp_path):
    """Two paths that share a module."""
    folder = tmp_path / "exported"
    shared = b"early" * LARGE
    files = {"README.md": b"card", "release.json": b"{}", "router.json": b"{}", ".path_2-x/a": b""}
    for path in ("path_0000", "path_0001"):
        files[f"{path}/model-early-0000.safetensors"] = shared
        files[f"{path}/model-late-{path}.safetensors"] = path.encode() * LARGE
        files[f"{path}/config.json"] = b"{}"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def contents(folder) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def test_an_export_is_pushed_and_pulled_and_a_shared_file_is_fetched_once(
    hub, exported, here, tmp_path
):
    ended = here("push", exported, PLACE)
    assert (ended.code, f"{hub.url}/{NAME}/commit/" in ended.out) == (0, True), ended.err
    wanted = {name: file for name, file in contents(exported).items() if name[0] != "."}
    assert hub.files(NAME) == wanted | {".gitattributes": b"", "notes.txt": b"mine"}
    assert len(hub.large) == 3, "the shared module is sent once"
    out = tmp_path / "fetched"
    ended = here("pull", PLACE, out)
    assert ended.code == 0, ended.err
    assert contents(out) == wanted | {"notes.txt": b"mine"}
    of_shared = [file for file in hub.fetched if "early" in file]
    assert of_shared == ["path_0000/model-early-0000.safetensors"]
    one, other = sorted(out.glob("*/model-early*"))
    assert one.stat().st_ino == other.stat().st_ino
    assert sorted(file.name for file in tmp_path.iterdir()) == ["exported", "fetched"]
    again = here("pull", PLACE, out)
    assert (again.code, again.err.startswith("CheckpointExists: ")) == (2, True)


def test_an_upload_that_is_cut_changes_nothing_and_the_same_command_sends_the_rest(
    hub, exported, here
):
    before = hub.files(NAME)
    hub.cut_after = 2
    ended = here("push", exported, PLACE)
    assert (ended.code, f"HubFailed: {hub.url}: " in ended.err) == (4, True), ended.err
    assert "the same command goes on" in ended.err
    assert "Traceback" not in ended.err
    assert hub.files(NAME) is before
    arrived = dict(hub.large)
    hub.cut_after = None
    assert here("push", exported, PLACE).code == 0
    assert hub.files(NAME).items() > before.items()
    assert hub.large.items() > arrived.items()


def test_a_download_that_is_cut_leaves_no_folder_and_goes_on(hub, exported, here, tmp_path):
    assert here("push", exported, PLACE).code == 0
    hub.cut_after, out = 3, tmp_path / "fetched"
    ended = here("pull", PLACE, out)
    assert (ended.code, "HubFailed: " in ended.err) == (4, True), ended.err
    assert not out.exists()
    whole = set(hub.fetched[:3])
    hub.fetched, hub.cut_after = [], None
    assert here("pull", PLACE, out).code == 0
    assert contents(out).keys() == hub.files(NAME).keys() - {".gitattributes"}
    assert not whole & set(hub.fetched), "what has arrived is not fetched again"


@pytest.mark.parametrize(
    ("line", "token", "says"),
    [
        ("push EXPORT hf://we/quickstart", "reader", "HubRefused: HUB refuses we/quickstart: You"),
        ("push EXPORT hf://we/other", "writer", "NoRepository: HUB shows no repository we/other"),
        ("pull hf://we/other DIR", "writer", "NoRepository: HUB shows no repository we/other"),
        ("push EXPORT we/quickstart", "writer", "NotOnHub: `we/quickstart` is no repository"),
        ("push EXPORT hf://we/a--b", "writer", "NotOnHub: `hf://we/a--b` is no repository"),
        ("push DIR hf://we/quickstart", "writer", "NoSuchRun: DIR holds no run."),
        ("push BEGUN hf://we/quickstart", "writer", "ExportUnfinished: BEGUN has no README.md"),
        ("pull hf://we/quickstart s3://bucket/x", "writer", "OutputNotLocal: s3://bucket/x"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_nothing_is_changed(
    hub, exported, here, tmp_path, monkeypatch, line, token, says
):
    monkeypatch.setenv("HF_TOKEN", token)
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "release.json").write_text("{}")
    names = {"EXPORT": exported, "DIR": tmp_path / "none", "BEGUN": begun, "HUB": hub.url}
    for name, value in names.items():
        line, says = (text.replace(name, str(value)) for text in (line, says))
    ended = here(*shlex.split(line))
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1, ended.err
    assert (len(hub.repositories[NAME]), hub.large) == (1, {})
    assert not (tmp_path / "none").exists()


def test_a_run_is_exported_and_pushed_and_a_card_that_is_there_stays(hub, tiny, here):
    assert here("push", tiny.folder, PLACE).code == 0
    files = hub.files(NAME)
    assert {"README.md", "route.py", "router.json", "path_0003/config.json"} < files.keys()
    assert b"# toy: 4 paths" in files["README.md"]
    hub.repositories[NAME].append(files | {"README.md": b"license: mine"})
    ended = here("push", tiny.folder, PLACE)
    assert "The README.md of the repository stays as it was." in ended.out
    assert hub.files(NAME)["README.md"] == b"license: mine"


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (PermissionError("the token of Xet has expired"), "HubFailed: {hub}: the token of Xet has"),
        (errors.XetDownloadError("no part came"), "HubFailed: {hub}: no part came. What has"),
        (
            OSError(errno.ENOSPC, "full", "some/file"),
            "DiskFull: No space left on the disk of {out}",
        ),
    ],
)
def test_what_the_library_raises_is_a_sentence(hub, here, tmp_path, monkeypatch, raised, says):
    def snapshot_download(*_, **__):
        raise raised

    monkeypatch.setattr("huggingface_hub.HfApi.snapshot_download", snapshot_download)
    ended = here("pull", PLACE, tmp_path / "out")
    assert ended.err.startswith(says.format(hub=hub.url, out=tmp_path / "out"))
    assert (ended.code, len(ended.err.splitlines())) == (4, 1)


def test_a_hub_that_is_not_there_is_a_sentence(hub, exported, here, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    ended = here("push", exported, PLACE)
    assert (ended.code, "HubFailed: http://127.0.0.1:9: " in ended.err) == (4, True), ended.err
