"""Opening a run's database by where it is: a file of SQLite, or a schema on a PostgreSQL server.

Apart from `database.py`, which the two import. Each is loaded when it is needed.
"""

from pathlib import Path

from dipaco.control.database import Database
from dipaco.control.errors import BadDatabase
from dipaco.files import PRIVATE, install_file

BESIDE = ("-turn", "-host")  # files of the processes that use a ledger, no part of it
LOG = ("-wal", "-shm")  # commits of the ledger of that name, and of no other


def open_database(
    location: Path | str, schema: str = "", *, allows_older: bool = False
) -> Database:
    """The database at a location: a file, or `postgresql://...` with the schema of one run. Tables
    are created in an empty one.

    Args:
      allows_older: its tables may be those of an older version of this program.

    Raises:
      BadDatabase: neither a file nor such a URL.
      LedgerOlder: its tables are older, and other processes may be using them.
      LedgerDamaged, LedgerVersion, NotWritable, DiskFull, RunBusy, DatabaseUnreachable.
    """
    if isinstance(location, Path):
        from dipaco.control.sqlite import SQLite

        return SQLite(location, allows_older=allows_older)
    if location.startswith(("postgresql://", "postgres://")):
        from dipaco.control.postgresql import PostgreSQL

        return PostgreSQL(location, schema, allows_older=allows_older)
    raise BadDatabase(given=location)


def install_ledger(partial: Path, final: Path) -> None:
    """Puts a finished ledger, a file that no process has open, at its name. What was there goes
    with its log, which would be read as the new one's.
    """
    for file, suffixes in ((partial, BESIDE), (final, LOG)):
        for suffix in suffixes:
            file.with_name(f"{file.name}{suffix}").unlink(missing_ok=True)
    install_file(partial, final, PRIVATE)  # it holds the key that signs passes
