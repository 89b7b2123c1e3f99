"""A picture that a notebook shows, and that can be written into a file."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from dipaco.files import translate_os_errors
from dipaco.library.errors import PictureUnwritable

ENDINGS = (".png", ".svg", ".pdf")


class Picture:
    """A drawing. The ending of its file's name chooses the format.

    Args:
      draw: draws it into a file (.png, .svg, .pdf).
    """

    def __init__(self, draw: Callable[[Path], None]):
        self._draw = draw

    def save(self, file: Path | str) -> Path:
        """Writes the picture and returns the file. Raises `PictureUnwritable` for other endings."""
        file = Path(file)
        if file.suffix.lower() not in ENDINGS:
            raise PictureUnwritable(file=file, known=", ".join(ENDINGS))
        with translate_os_errors(file):
            self._draw(file)
        return file

    def png(self) -> bytes:
        """The picture as PNG."""
        with tempfile.TemporaryDirectory(prefix="dipaco-picture-") as folder:
            return self.save(Path(folder) / "picture.png").read_bytes()

    def _repr_png_(self) -> bytes:
        return self.png()

    def __repr__(self) -> str:
        return "a picture: a notebook shows it, `.save(FILE)` writes it (.png, .svg, .pdf)"
