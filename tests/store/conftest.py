"""The objects of a run on two machines, which share a folder, or a bucket and nothing else."""

import dataclasses
import uuid
from pathlib import Path

import pytest

from dipaco.receipt import Receipt
from dipaco.store.cache import FileCache
from dipaco.store.layout import remote_name
from dipaco.store.objects import Objects
from dipaco.store.remote import Remote
from tests.support.google_storage import GoogleStorage


@dataclasses.dataclass
class SharedObjects:
    """The objects of one run on two machines; and access to its bytes, to spoil them."""

    here: Objects
    other: Objects

    def spoil(self, receipt: Receipt, content: bytes | None) -> None:
        """Replaces the bytes of an object; None = removes it."""
        if self.here.remote is not None:
            name = remote_name(receipt)
            if content is None:
                self.here.remote.delete(name)
            else:
                self.here.remote.write(name, content)
        elif content is None:
            (self.here.root / receipt.name).unlink()
        else:
            (self.here.root / receipt.name).write_bytes(content)

    def content(self, receipt: Receipt) -> bytes | None:
        if self.here.remote is not None:
            return self.here.remote.read(remote_name(receipt))
        file = self.here.root / receipt.name
        return file.read_bytes() if file.exists() else None


@pytest.fixture
def objects(tmp_path):
    """Those of a run in a folder."""
    return Objects(tmp_path)


@pytest.fixture(params=["folder", "s3", "google"])
def store(request, tmp_path):
    """Each kind of store."""
    if request.param == "folder":
        return SharedObjects(Objects(tmp_path), Objects(tmp_path))
    if request.param == "s3":
        return in_bucket(request.getfixturevalue("bucket").url, tmp_path)
    return in_bucket(f"gs://bucket/{uuid.uuid4().hex}", tmp_path)


@pytest.fixture(scope="session", autouse=True)
def google():
    """The server for `gs://`; TensorStore reads its address once in a process."""
    with GoogleStorage() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", server.url)
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "test")
        yield server


def in_bucket(url: str, folder: Path) -> SharedObjects:
    """A run in a bucket."""

    def machine(name: str) -> Objects:
        root = folder / name / "run"
        root.mkdir(parents=True)
        return Objects(root, Remote(f"{url}/run"), FileCache(root.parent, 1 << 30))

    return SharedObjects(machine("here"), machine("other"))
