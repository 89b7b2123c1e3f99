"""The report of a run: its table as records, text or a data frame, and its picture."""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dipaco.evaluation.tables import Report, render_markdown, render_text
from dipaco.files import translate_os_errors
from dipaco.library.errors import PandasMissing, PictureUnwritable

PICTURE_ENDINGS = (".png", ".svg", ".pdf")


class RunReport(Mapping[str, dict[str, Any]]):
    """The results of a finished run: a record for each trained model, by its name in the table.
    `repr` and a notebook show the table.

    Attributes:
      content: all of `report.json`.
    """

    def __init__(self, content: Report):
        self.content = content

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A record for each trained model, in the order of the table, with `ReportRow`'s fields."""
        return [dataclasses.asdict(row) for row in self.content.rows]

    @property
    def names(self) -> list[str]:
        """The names of the rows."""
        return [row.name for row in self.content.rows]

    @property
    def notes(self) -> list[str]:
        """Sentences on how to read the table."""
        return self.content.notes

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Test perplexity of each model: (steps, perplexity), steps ascending."""
        return self.content.curves

    def data_frame(self) -> Any:
        """The rows as a pandas DataFrame, by name. A nested value has a column: `link_seconds.20`.

        Raises:
          PandasMissing: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise PandasMissing() from error
        return pd.json_normalize(self.rows).set_index("name")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.content.rows)

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The record of a model, by its name in the table. Raises `KeyError`."""
        rows = {row["name"]: row for row in self.rows}
        if name not in rows:
            raise KeyError(f"no row `{name}`; there are {', '.join(rows)}")
        return rows[name]

    def __repr__(self) -> str:
        return render_text(self.content.table)

    def _repr_markdown_(self) -> str:
        notes = "\n".join(f"- {note}" for note in self.notes)
        return f"{render_markdown(self.content.table)}\n\n{notes}"


class Picture:
    """A drawing that a notebook shows and that can be saved.

    Args:
      draw: draws it into a file. The file's ending (.png, .svg, .pdf) chooses the format.
    """

    def __init__(self, draw: Callable[[Path], None]):
        self._draw = draw

    def save(self, file: Path | str) -> Path:
        """Writes the picture and returns the file. Raises `PictureUnwritable` for other endings."""
        file = Path(file)
        if file.suffix.lower() not in PICTURE_ENDINGS:
            raise PictureUnwritable(file=file, known=", ".join(PICTURE_ENDINGS))
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
