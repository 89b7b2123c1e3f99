"""The table of a run or of a sweep as records, text or a data frame; pictures."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dipaco.evaluation.errors import BadReport
from dipaco.evaluation.style import check_picture
from dipaco.evaluation.tables import (
    Report,
    columns_as_markdown,
    columns_as_text,
    notes_as_markdown,
    num_bytes,
    quantity,
    render_markdown,
    render_text,
)
from dipaco.files import translate_os_errors
from dipaco.library.errors import PandasMissing, SweepUnfinished
from dipaco.store.layout import SweepLayout

FIGURES = ("perplexity", "bits_per_byte")  # of a comparison


class Records(Mapping[str, dict[str, Any]]):
    """The rows of a table: a record for each trained model, by its name in the table. `repr` and a
    notebook show the table.

    Attributes:
      rows: the records, in the order of the table.
      notes: sentences on how to read it.
    """

    def __init__(self, rows: list[dict[str, Any]], notes: list[str]):
        self.rows, self.notes = rows, notes

    @property
    def names(self) -> list[str]:
        """The names of the rows."""
        return [row["name"] for row in self.rows]

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
        return len(self.rows)

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The record of a model, by its name in the table. Raises `KeyError`."""
        rows = {row["name"]: row for row in self.rows}
        if name not in rows:
            raise KeyError(f"no row `{name}`; there are {', '.join(rows)}")
        return rows[name]


class RunReport(Records):
    """The results of a finished run, with `ReportRow`'s fields.

    Attributes:
      content: all of `report.json`.
    """

    def __init__(self, content: Report):
        super().__init__([dataclasses.asdict(row) for row in content.rows], content.notes)
        self.content = content

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Test perplexity of each model: (steps, perplexity), steps ascending."""
        return self.content.curves

    def __repr__(self) -> str:
        return render_text(self.content.table)

    def _repr_markdown_(self) -> str:
        return f"{render_markdown(self.content.table)}\n\n{notes_as_markdown(self.notes)}"


class OpenedSweep(Records):
    """The table of a sweep as it is now, with `SweepRow`'s fields.

    Attributes:
      folder: the sweep's folder.
      content: all of `table.json`.
    """

    def __init__(self, layout: SweepLayout):
        try:
            self.content = json.loads(layout.table("json").read_bytes())
            self._markdown = layout.table("md").read_text(encoding="utf-8")
            # A row is the mean of its `seeds`.
            rows = [{k: v for k, v in row.items() if k != "seed"} for row in self.content["rows"]]
            super().__init__(rows, self.content["notes"])
        except FileNotFoundError:
            raise SweepUnfinished(folder=layout.root) from None
        except (ValueError, KeyError) as error:
            raise BadReport(problem=error) from error
        self.folder = str(layout.root)

    def __repr__(self) -> str:
        lines = [
            (
                row["name"],
                str(len(row["seeds"])),
                f"{row['perplexity']:.2f}",
                _difference(row["difference"], row["spread"]),
                f"{row['bits_per_byte']:.3f}",
                quantity(row["tokens"]),
                num_bytes(row["bytes_per_machine"]),
            )
            for row in self.rows
        ]
        to = f"to {self.content['reference']}"
        heads = ("row", "seeds", "perplexity", to, "bits per byte", "tokens", "bytes per machine")
        return columns_as_text(heads, lines)

    def _repr_markdown_(self) -> str:
        return self._markdown


def _difference(difference: float | None, spread: float | None) -> str:
    if difference is None:
        return ""
    return f"{difference:+.2f}" + ("" if spread is None else f" ± {spread:.2f}")


class Comparison(Records):
    """Rows of two runs under the same names: `perplexity` and `bits_per_byte` of both. `change`
    says by what share the second one's is higher, in `by`.
    """

    def __init__(self, one: RunReport, other: RunReport, notes: list[str], by: str):
        names = [name for name in one.names if name in other]
        rows = []
        for name in names:
            pairs = {field: (one[name][field], other[name][field]) for field in FIGURES}
            first, second = pairs[by]
            rows.append({"name": name, **pairs, "change": second / first - 1})
        super().__init__(rows, notes)
        self.by = by

    def _columns(self) -> tuple[list[str], list[list[str]]]:
        heads = ["row", *(f"{field.replace('_', ' ')} of {n}" for field in FIGURES for n in "ab")]
        lines = [
            [
                row["name"],
                *(f"{value:.3f}" for field in FIGURES for value in row[field]),
                f"{row['change']:+.1%}",
            ]
            for row in self.rows
        ]
        return [*heads, f"change of {self.by.replace('_', ' ')}"], lines

    def __repr__(self) -> str:
        return "\n".join([columns_as_text(*self._columns()), *self.notes])

    def _repr_markdown_(self) -> str:
        return f"{columns_as_markdown(*self._columns())}\n\n{notes_as_markdown(self.notes)}"


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
        check_picture(file)
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
