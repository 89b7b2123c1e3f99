"""The place of a run's facts: its folder, or a database that the user names.

    postgresql://ana@host/runs      a server; the password, if any, from PostgreSQL's password file
    env:DIPACO_DATABASE             the URL is in this environment variable, password and all

A URL with a password in it is refused: `ps` shows command lines to every user.

On a server every run has a schema. Its name is made up once and kept beside the run's objects, so
that a run stays the same when its folder is moved, linked or mounted elsewhere.
"""

import os
import re
import uuid
from pathlib import Path
from typing import NamedTuple

from dipaco.control.errors import (
    BadDatabase,
    BadDatabaseURL,
    PasswordOnCommandLine,
    VariableMissing,
)


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
        where = self.database
        return str(where) if isinstance(where, Path) else without_password(where)


MOST_LETTERS = 20  # A schema's name has so many of the run's. PostgreSQL cuts names after 63 bytes.


def new_schema(name: str) -> str:
    """A name that no other schema has, for the facts of a new run.

    Args:
      name: the run's name, for people who list the schemas of a server.
    """
    letters = re.sub(r"[^a-z0-9_]", "", name.lower())[:MOST_LETTERS]
    return f"dipaco_{letters}_{uuid.uuid4().hex}"


def location_of(file: Path, database: str | None, schema: str = "") -> DatabaseLocation:
    """The location that the user named.

    Args:
      file: the ledger's file, used if no database is named.

    Raises:
      BadDatabase, PasswordOnCommandLine, VariableMissing.
    """
    if database is None:
        return DatabaseLocation(file, "")
    if database.startswith("env:"):
        variable = database.removeprefix("env:")
        url = os.environ.get(variable, "").strip()  # a secret from a file ends with a line feed
        if not url:
            raise VariableMissing(variable=variable)
    else:
        refuse_password(database)
        url = database
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadDatabase(given=without_password(url))
    return DatabaseLocation(url, schema)


_QUERY = re.compile(r"(?=\?\w+=)")  # The query begins here. A `?` alone may be in a password.


def _credentials(url: str) -> tuple[str, str, str]:
    """The URL in three parts: up to the user, user and password, and the rest from the `@` on. The
    second is empty if there are none.
    """
    scheme, slashes, place = url.partition("://") if re.match(r"\w+://", url) else ("", "", url)
    of_a_client, of_a_person = place.partition("/")[0], _QUERY.split(place, maxsplit=1)[0]
    end = max(of_a_client.rfind("@"), of_a_person.rfind("@"))
    return scheme + slashes, place[: max(end, 0)], place[max(end, 0) :]


def without_password(url: str) -> str:
    """The same URL without its password, to be shown."""
    scheme, credentials, rest = _credentials(url)
    user = credentials.partition(":")[0]
    return re.sub(r"(password=)[^&]+", r"\1", scheme + user + rest)


def refuse_password(url: str) -> None:
    """Raises `PasswordOnCommandLine`: every user of the machine can read command lines."""
    if without_password(url) != url:
        raise PasswordOnCommandLine(place=without_password(url).partition("?")[0])


def check_credentials(url: str) -> None:
    """Raises `BadDatabaseURL`: PostgreSQL's client would take a part of them for the host."""
    if re.search("[/@]", _credentials(url)[1]):
        problem = "there is a `/` or `@` in its user or password"
        raise BadDatabaseURL(place=without_password(url), problem=problem)
