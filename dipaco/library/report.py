"""The report of a run: its table as records, as text, and, with pandas, as a data frame."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from dipaco.evaluation.tables import Report, render_markdown, render_text
from dipaco.library.errors import PandasMissing


class RunReport(Mapping[str, dict[str, Any]]):
    """The results of a finished run: a record for each trained model, by its name in the table.
    `repr` and a notebook show the table.

    Attributes:
      content: everything in `report.json`.
    """

    def __init__(self, content: Report):
        self.content = content

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A record for each trained model, in the order of the table, with the fields of
        `ReportRow`.
        """
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
        """Validation perplexity of each model: (steps, perplexity), steps ascending."""
        return self.content.curves

    def data_frame(self) -> Any:
        """The rows as a pandas DataFrame, indexed by name. `link_seconds.20` is one column.

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
        return render_text(self.content.rows)

    def _repr_markdown_(self) -> str:
        notes = "\n".join(f"- {note}" for note in self.notes)
        return f"{render_markdown(self.content.rows)}\n\n{notes}"
