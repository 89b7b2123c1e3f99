"""Opening a run's database by where it is: a file of SQLite, or a schema on a PostgreSQL server.

Apart from `database.py`, which the two import. Each is loaded when it is needed.
"""

from pathlib import Path

from dipaco.control.database import Database
from dipaco.control.errors import BadDatabase


def open_database(place: Path | str, schema: str = "", *, is_older_fine: bool = False) -> Database:
    """The database at a place: a file, or `postgresql://...` with the schema that one run has. An
    empty one is given its tables.

    Args:
      is_older_fine: its tables may be those of an older version of this program.

    Raises:
      BadDatabase: neither of these.
      LedgerOlder: its tables are older, and others may still be using them as they are.
      LedgerDamaged, LedgerVersion, NotWritable, DiskFull, RunBusy, DatabaseUnreachable.
    """
    if isinstance(place, Path):
        from dipaco.control.sqlite import SQLite

        return SQLite(place, is_older_fine=is_older_fine)
    if place.startswith(("postgresql://", "postgres://")):
        from dipaco.control.postgresql import PostgreSQL

        return PostgreSQL(place, schema, is_older_fine=is_older_fine)
    raise BadDatabase(given=place)
