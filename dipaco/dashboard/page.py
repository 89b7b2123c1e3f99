"""The page as one file: its pieces put together, with a recording inside it or to be fetched.

There is no build step: the pieces are HTML, CSS and JavaScript as browsers take them, in the order
of `SCRIPTS`. The page connects to its own server only, and from disk to nothing.
"""

import importlib.resources
import logging
import re
from pathlib import Path
from typing import Any

from dipaco.control.errors import NotAvailable
from dipaco.dashboard import texts as of_texts
from dipaco.dashboard.errors import PageIsFolder
from dipaco.dashboard.reader import Reader
from dipaco.dashboard.recording import recording_of, state_of, to_json
from dipaco.dashboard.sweep import SweepWatcher
from dipaco.dashboard.texts import Texts
from dipaco.errors import CorpusMissing, DipacoError
from dipaco.files import translate_os_errors, write_atomically
from dipaco.runs.run import Run

MARKS = ("/* STYLE */", "<!-- RECORDING -->", "/* SCRIPT */")  # their order in `index.html`
SCRIPTS = ["model", "draw", "grid", "workers", "curves", "texts", "sweep", "clock", "live", "main"]


def page(recording: bytes | None = None, texts: bytes | None = None) -> bytes:
    """The page. With a recording and its texts inside, it needs no server."""
    script = "\n".join(_piece(f"{name}.js") for name in SCRIPTS)
    held = "".join(
        f'<script type="application/json" id="{name}">{_inside(content)}</script>\n'
        for name, content in (("recording", recording), ("texts", texts))
        if content is not None
    )
    # Split before anything is put in: a run's text may contain the marks.
    pieces = re.split("|".join(map(re.escape, MARKS)), _piece("index.html"))
    contents = (_piece("style.css"), held, script)
    whole = "".join(part for pair in zip(pieces, (*contents, ""), strict=True) for part in pair)
    return whole.encode()


def export(shown: Run | SweepWatcher, file: Path) -> int:
    """Writes the complete page of a run, or of a sweep without its runs' pages, to one file.
    Returns its size in bytes. Raises `PageIsFolder`, and the errors of `write_atomically`.
    """
    if not file.name or file.is_dir():
        raise PageIsFolder(file=file, inside=file / "page.html")
    is_sweep = isinstance(shown, SweepWatcher)
    content = page(shown.recording()) if is_sweep else page(*recording_and_texts(shown))
    with translate_os_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
    return len(content)


def recording_and_texts(run: Run) -> tuple[bytes, bytes]:
    """Both documents of a run in their present state."""
    reader = Reader(run)
    with run.ledger.at_one_moment():
        reader.read(is_inside=True)
        recording = recording_of(reader, state_of(reader))
    return to_json(recording), of_texts.to_json(table_of(run))


def table_of(run: Run) -> dict[str, Any] | None:
    """The texts of a run. None if nothing has been routed, if its text is not here, or, with a
    warning, if it cannot be read.
    """
    try:
        return Texts(run).table()
    except (NotAvailable, CorpusMissing):
        return None
    except (DipacoError, OSError) as error:
        warning = "The page is without the texts of %s, which cannot be read: %s"
        logging.getLogger("dipaco").warning(warning, run.address, error)
        return None


def _inside(content: bytes) -> str:
    """JSON that cannot end the script element which holds it, whatever a run calls its domains."""
    return content.decode().replace("<", "\\u003c")


def _piece(name: str) -> str:
    return importlib.resources.files("dipaco.dashboard").joinpath("pieces", name).read_text("utf-8")
