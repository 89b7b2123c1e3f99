"""A finished run that gets its last release a second time, when a test wants it to."""

import contextlib
import json
import sqlite3

import pytest


class Rewound:
    """A copy of the finished run, set back to before its last release, which it may get again."""

    def __init__(self, folder):
        self.folder = folder
        with self._ledger() as ledger:
            (self._row,) = ledger.execute(
                "SELECT arm, phase, digest, body FROM releases WHERE arm = 'modular' AND phase = 2"
            )
            ledger.execute("DELETE FROM releases WHERE arm = 'modular' AND phase = 2")

    def publish(self, change=lambda body: body):
        arm, phase, digest, body = self._row
        body = json.dumps(change(json.loads(body)), sort_keys=True)
        with self._ledger() as ledger:
            ledger.execute("INSERT INTO releases VALUES (?, ?, ?, ?)", (arm, phase, digest, body))

    def unpublish(self):
        with self._ledger() as ledger:
            ledger.execute("DELETE FROM releases WHERE arm = 'modular' AND phase = 2")

    def file_of(self, path, module):
        """The module as the last release has it, in a path."""
        body = json.loads(self._row[3])
        name, *_ = body["objects"][body["paths"][path][module]]
        return self.folder / name

    @contextlib.contextmanager
    def _ledger(self):
        with contextlib.closing(sqlite3.connect(self.folder / "ledger.sqlite")) as ledger, ledger:
            yield ledger


@pytest.fixture
def rewound(tiny, copy_of):
    return Rewound(copy_of(tiny).folder)
