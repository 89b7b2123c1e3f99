"""Errors of this room: sweeps that cannot be run. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class SweepBusy(DipacoError):
    """Another `dipaco ablate` is working on {folder}. Wait for it or stop it. `dipaco status --run {folder!q}/rows/NAME/SEED` shows how far a run is."""


class BadSeeds(DipacoError):
    """`--seeds {given}`: {problem}. Expected whole numbers from 0, each once, with commas between them, as in 0,1,2."""


class NoSuchRow(DipacoError):
    """The sweep `{sweep}` has no row `{name}`. It has: {known}."""


class SweepMismatch(DipacoError):
    """{folder} holds {found}, not the sweep `{sweep}`. Nothing was changed. Give another folder."""


class RowsChanged(DipacoError):
    """{rows} of the sweep changed since it was run in {folder}: {difference}. Nothing was run or changed. `--redo NAME` runs such a row again and keeps the old run under `replaced`. Or give another folder, or undo the change."""


class RowRefused(DipacoError):
    """The row `{row}` cannot begin: {problem} No run was begun or changed."""


class OtherBaseModel(DipacoError):
    """{folder} holds another base model than {row} begins with, as one that another version of dipaco trained. Move it away, and the sweep trains that base model again. Or give another folder."""
