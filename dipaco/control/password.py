"""The password in the URL of a database: never shown, and refused on a command line.

A person means by it what goes from the user's `:` to the last `@` before the query. PostgreSQL's
client ends it at the first `/` or `@`, whatever `?` is in it, and takes what follows for the host.
What either would call a password is one here.
"""

import re

from dipaco.control.errors import BadDatabaseURL, PasswordOnCommandLine

_QUERY = re.compile(r"(?=\?\w+=)")  # where it begins; a `?` alone may be in a password


def _credentials(url: str) -> tuple[str, str, str]:
    """The URL in three: what is before the user, the user and password, and the rest from the `@`
    on. The second is empty where there are none.
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
