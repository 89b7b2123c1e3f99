"""Where the facts of a run are: in its folder, or in a database that the user names.

    postgresql://ana@host/runs      a server; the password, if any, from PostgreSQL's password file
    env:DIPACO_DATABASE             the URL is in this environment variable, password and all

A URL with a password in it is refused: `ps` shows command lines to every user.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from dipaco.control.errors import BadDatabase, VariableMissing
from dipaco.control.postgresql import refuse_password, without_password


class DatabaseLocation(NamedTuple):
    """The arguments of `Ledger`."""

    database: Path | str
    schema: str  # the run's own, on a server

    @property
    def is_server(self) -> bool:
        return not isinstance(self.database, Path)

    @property
    def name(self) -> str:
        """Without its password."""
        return without_password(str(self.database))


def location_of(file: Path, run: str, database: str | None) -> DatabaseLocation:
    """The location that the user named.

    Args:
      file: of the ledger, if no database is named.
      run: full address of the run; names the schema, so that runs can share a database.
      database: as above, or None.

    Raises:
      BadDatabase, PasswordOnCommandLine, VariableMissing.
    """
    if database is None:
        return DatabaseLocation(file, "")
    if database.startswith("env:"):
        variable = database.removeprefix("env:")
        url = os.environ.get(variable)
        if url is None:
            raise VariableMissing(variable=variable)
    else:
        refuse_password(database)
        url = database
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadDatabase(given=without_password(url))
    last = run.rstrip("/").rpartition("/")[2].lower()
    name = "".join(letter for letter in last if letter.isalnum() or letter == "_")
    digest = hashlib.sha256(run.encode()).hexdigest()
    return DatabaseLocation(url, f"dipaco_{name[:32]}_{digest[:12]}")
