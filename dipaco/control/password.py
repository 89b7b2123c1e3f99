"""The password in the URL of a database: never shown, and refused on a command line.

It goes from the user's `:` to the last `@` before the query, as a person means it. PostgreSQL's
client ends it at the first `/` or `@`, and takes what follows for the host.
"""

import re

from dipaco.control.errors import BadDatabaseURL, PasswordOnCommandLine

_QUERY = re.compile(r"(?=\?\w+=)")  # where it begins; a `?` alone may be in a password
_CREDENTIALS = re.compile(r"^((?:\w+://)?+[^:]*):(.*)@", re.DOTALL)


def without_password(url: str) -> str:
    """The same URL without its password, to be shown."""
    place, *query = _QUERY.split(url, maxsplit=1)
    place = _CREDENTIALS.sub(r"\1@", place, count=1)
    return re.sub(r"(password=)[^&]+", r"\1", "".join([place, *query]))


def refuse_password(url: str) -> None:
    """Raises `PasswordOnCommandLine`: every user of the machine can read command lines."""
    if without_password(url) != url:
        raise PasswordOnCommandLine(place=without_password(url).partition("?")[0])


def check_credentials(url: str) -> None:
    """Raises `BadDatabaseURL`: PostgreSQL's client would take a part of them for the host."""
    found = _CREDENTIALS.match(_QUERY.split(url, maxsplit=1)[0])
    if found and re.search("[/@]", found[1].partition("//")[2] + found[2]):
        problem = "there is a `/` or `@` in its user or password"
        raise BadDatabaseURL(place=without_password(url), problem=problem)
