"""`push` and `pull`: exports in repositories of the Hugging Face Hub, by `huggingface_hub`.

HF_ENDPOINT names another hub, HF_TOKEN or `hf auth login` the token, as for everything that uses
that library. Its tests know a stand-in of the hub's API, without Xet.
"""

import argparse
import contextlib
import errno
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from dipaco.cli.errors import ExportUnfinished, HubFailed, HubRefused, NoRepository, NotOnHub
from dipaco.cli.options import find_release, output_path
from dipaco.errors import FILE_ERRNOS, CheckpointExists, needs_extra, one_line
from dipaco.files import link, translate_os_errors
from dipaco.store.address import Address

CARD = "README.md"
_PUSH = """Send an export to a repository of the Hugging Face Hub.

  dipaco export --run runs/quickstart --all --out exported
  hf repos create OWNER/NAME --private
  dipaco push exported hf://OWNER/NAME

A run is exported first, all paths and the router of its newest release: `dipaco push RUN ...`. The
README.md of the repository then stays, if it has one; that of an export, which you may have
edited, replaces it. Nothing there is deleted. Interrupted, the same command sends what is left.
"""
_PULL = """Fetch an export from a repository of the Hugging Face Hub, into a new folder.

  dipaco pull hf://OWNER/NAME exported
  python exported/route.py "And God said"

A file that several paths have is fetched once, and linked. Interrupted, the same command fetches
what is left.
"""


def hub_place(text: str) -> str:
    """`OWNER/NAME` of `hf://OWNER/NAME`. Raises `NotOnHub`."""
    if not (found := re.fullmatch(r"hf://([\w.-]+/[\w.-]+)/?", text)):
        raise NotOnHub(given=text)
    return found[1]


class HubVerb:
    """A verb with two places, of which one is on the hub."""

    def __init__(self, places: dict[str, tuple], does: Any, help_line: str, description: str):
        self._places, self.run, self.HELP, self.__doc__ = places, does, help_line, description

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for name, (kind, help_line) in self._places.items():
            parser.add_argument(name.lower(), type=kind, metavar=name, help=help_line)


def _push(options: argparse.Namespace) -> int:
    name, folder = options.repository, Path(options.source).expanduser()
    is_export = any((folder / file).exists() for file in ("release.json", "config.json"))
    if is_export and not (folder / CARD).exists():
        raise ExportUnfinished(folder=folder)
    with _hub(name) as api:
        left_out = [".*"]  # An interrupted export has left such files.
        files = {file.rfilename for file in api.repo_info(name).siblings}
    with contextlib.ExitStack() as stack:
        if not is_export:
            folder = _exported(Address.parse(options.source), stack)
            left_out += files & {CARD}
        api = stack.enter_context(_hub(name))
        done = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            ignore_patterns=left_out,
            commit_message="Upload by dipaco push",
        )
    print(f"{options.source}: {done.commit_url}")
    if CARD in left_out:
        print(f"The {CARD} of the repository stays as it was.")
    return 0


def _exported(address: Address, stack: contextlib.ExitStack) -> Path:
    """An export of a run, which is gone when the stack is closed."""
    from dipaco.runs.opening import reading
    from dipaco.runs.reading.export import export_all

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dipaco-push-"))) / "all"
    newest = argparse.Namespace(arm="modular", phase=None)
    with reading(address) as opened:
        export_all(opened, find_release(opened, newest), folder)
    return folder


def _pull(options: argparse.Namespace) -> int:
    name, folder = options.repository, options.folder
    if folder.exists():
        raise CheckpointExists(folder=folder)
    with translate_os_errors(folder), _hub(name) as api:
        sha = api.repo_info(name).sha
        partial = folder.with_name(f".{folder.name}.{sha}")
        first: dict[str, str] = {}
        again: dict[str, str] = {}  # file -> the file with the same bytes that is fetched
        for file in api.list_repo_tree(name, recursive=True, revision=sha):
            digest = getattr(getattr(file, "lfs", None), "sha256", None)
            if digest and (same := first.setdefault(digest, file.path)) != file.path:
                again[file.path] = same
        left_out = [".*", *map(glob.escape, again)]
        api.snapshot_download(name, revision=sha, local_dir=partial, ignore_patterns=left_out)
        for path, same in again.items():
            at = partial / path
            if at.resolve().is_relative_to(partial.resolve()) and not at.exists():
                at.parent.mkdir(parents=True, exist_ok=True)
                link(partial / same, at)
        shutil.rmtree(partial / ".cache", ignore_errors=True)
        os.rename(partial, folder)
    print(f"{name} at {sha[:10]}: {folder}")
    return 0


@contextlib.contextmanager
def _hub(name: str) -> Generator[Any]:
    """The hub. Its errors become ours."""
    with needs_extra("hub", feature="The Hugging Face Hub"):
        from huggingface_hub import HfApi, constants, errors
    hub, of_xet = constants.ENDPOINT, getattr(errors, "XetDownloadError", RuntimeError)
    try:
        yield HfApi(library_name="dipaco")
    except errors.RepositoryNotFoundError as error:
        raise NoRepository(name=name, hub=hub) from error
    except errors.HFValidationError as error:
        raise NotOnHub(given=f"hf://{name}") from error
    except (errors.HTTPError, OSError, RuntimeError, of_xet) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, *FILE_ERRNOS):
            raise  # it is this machine's
        problem: BaseException = error
        while problem.__cause__ is not None and not hasattr(problem, "response"):
            problem = problem.__cause__
        response = getattr(problem, "response", None)
        said = getattr(problem, "server_message", None) or one_line(problem) or repr(problem)
        if response is not None and response.status_code in (400, 401, 403):
            raise HubRefused(hub=hub, name=name, problem=said) from error
        raise HubFailed(hub=hub, problem=said) from error


_REPOSITORY = (hub_place, "hf://OWNER/NAME")
PUSH = HubVerb(
    {"SOURCE": (str, "folder of an export, or a run"), "REPOSITORY": _REPOSITORY},
    _push,
    "send an export to the Hugging Face Hub",
    _PUSH,
)
PULL = HubVerb(
    {"REPOSITORY": _REPOSITORY, "FOLDER": (output_path, "a new folder")},
    _pull,
    "fetch an export from the Hugging Face Hub",
    _PULL,
)
