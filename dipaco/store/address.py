"""The address of a run: a folder, or a URL in a bucket.

    runs/quickstart            a folder, for processes that share its file system
    s3://bucket/quickstart     Amazon S3, or another that `AWS_ENDPOINT_URL` names
    gs://bucket/quickstart     Google Cloud Storage

A run in a bucket also has a folder on every machine that works on it, in the user's cache folder:
fetched files, logs, events. It may be deleted whenever no process works there.
"""

import dataclasses
import functools
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dipaco.caches import cache_folder
from dipaco.store.errors import BadRun

if TYPE_CHECKING:
    from dipaco.store.objects import Objects
    from dipaco.store.remote import Remote

SCHEMES = ("s3", "gs")


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a run."""

    folder: Path  # its files on this machine
    url: str | None = None  # Place of its objects in a bucket. None = they are in the folder.

    @classmethod
    def parse(cls, text: str) -> Self:
        """The value of `--run`. Raises `BadRun`."""
        if "://" not in text:
            if not text:
                raise BadRun(given=text, problem="it is empty")
            if text.lower().startswith(tuple(f"{scheme}:" for scheme in SCHEMES)):
                raise BadRun(
                    given=text, problem="a URL has two slashes, of which a `Path` keeps one"
                )
            return cls(Path(os.path.expanduser(text)))  # No shell does that in `--run=~/x`.
        scheme, _, place = text.partition("://")
        if "@" in place:
            shown = f"{scheme}://...@{place.rpartition('@')[2]}"
            problem = "credentials do not belong in a URL; they come from the environment"
            raise BadRun(given=shown, problem=problem)
        if scheme not in SCHEMES:
            raise BadRun(given=text, problem=f"`{scheme}` is not a known store")
        bucket, *names = place.rstrip("/").split("/")
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", bucket):
            raise BadRun(given=text, problem=f"`{bucket}` is not a valid name of a bucket")
        if not names:
            raise BadRun(given=text, problem="the run has no name in the bucket")
        for name in names:
            if name in (".", "..") or not re.fullmatch(r"[\w.=+-]+", name):
                problem = f"`{name}` cannot be part of a name (letters, digits and . _ - = +)"
                raise BadRun(given=text, problem=problem)
        url = f"{scheme}://{'/'.join([bucket, *names])}"
        digest = hashlib.sha256(url.encode()).hexdigest()[:12]
        return cls(cache_folder() / "runs" / f"{names[-1]}-{digest}", url)

    @classmethod
    def of(cls, where: "Where") -> "Address":
        """Accepts an address, a folder, or either as text. Raises `BadRun`."""
        return where if isinstance(where, Address) else cls.parse(str(where))

    def __str__(self) -> str:
        return self.url or str(self.folder)

    @property
    def absolute(self) -> str:
        """The same place for a process with another current folder."""
        return self.url or str(self.folder.absolute())

    @property
    def name(self) -> str:
        """The last part of it."""
        return self.absolute.rpartition("/")[2]

    def place_of(self, file: Path) -> str:
        """The place of a file of the run for its users: the bucket or the folder."""
        return f"{self.url}/{file.relative_to(self.folder)}" if self.url else str(file)

    @functools.cached_property
    def remote(self) -> "Remote | None":
        """The run's objects in the bucket. None = there is no bucket."""
        if self.url is None:
            return None
        from dipaco.store.remote import Remote

        return Remote(self.url)

    def objects(self) -> "Objects":
        """The objects of the run."""
        from dipaco.store.cache import FileCache, cache_bytes
        from dipaco.store.objects import Objects

        if self.remote is None:
            return Objects(self.folder)
        return Objects(self.folder, self.remote, FileCache(self.folder.parent, cache_bytes()))


# Functions that are called from Python take this. `Address.of` makes an address of it.
Where = Address | Path | str
