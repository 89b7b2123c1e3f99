"""Code that the checks of a client share: their server, and a line for each check.

A client's file is a separate program, started by `try_clients.py` with the Python that has the
client: `python -m clients.openai_checks URL MODEL`, with the key in `KEY_VARIABLE`. It writes
a line of JSON per check.
"""

import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

KEY_VARIABLE = "DIPACO_CLIENT_KEY"  # not an argument, which every user of a machine can read
PROMPT, OTHER = "And God", "def f("
SCHEMA = {
    "type": "object",
    "properties": {
        "sure": {"type": "boolean"},
        "digits": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["sure", "digits"],
    "additionalProperties": False,
}


class Server(NamedTuple):
    """The server that is asked."""

    url: str  # `http://host:port`
    model: str
    key: str

    @property
    def base_url(self) -> str:
        """The address in the form that OpenAI's clients want."""
        return self.url + "/v1"


class Check(NamedTuple):
    """Something that a client is asked to do."""

    what: str
    do: Callable[[Server], None]  # raises anything on failure


class Outcome(NamedTuple):
    """The outcome of one check."""

    what: str
    state: str  # "ok", "failed", "not tried"
    why: str = ""  # beside the other two


class WrongAnswer(Exception):
    """The client took an answer that is not what was asked for."""


def imported(name: str) -> Any:
    """A module of the client: without its types, as it may not be installed where these are
    checked.
    """
    return importlib.import_module(name)


def need(is_right: object, found: object) -> None:
    """Raises `WrongAnswer` with what was found."""
    if not is_right:
        raise WrongAnswer(f"unexpected: {found!r}"[:300])


def refused(
    call: Callable[[], object], error: type[Exception] | tuple[type[Exception], ...], word: str
) -> None:
    """Needs that a call raises this error of the client's, with a word in its message."""
    try:
        found = call()
    except error as refusal:
        need(word in str(refusal), str(refusal))
        return
    raise WrongAnswer(f"it was answered: {found!r}"[:300])


def run_checks(package: str, checks: Sequence[Check]) -> None:
    """Does all checks of a client with the server that the command line names."""
    url, model = sys.argv[1:]
    key = os.environ[KEY_VARIABLE]
    print(json.dumps({"version": importlib.metadata.version(package)}), flush=True)
    for check in checks:
        outcome = outcome_of(check, Server(url, model, key))
        print(json.dumps(outcome._asdict()), flush=True)


def outcome_of(check: Check, server: Server) -> Outcome:
    """Does a check."""
    try:
        check.do(server)
    except Exception as error:  # a client may raise anything
        words = " ".join(str(error).split())
        return Outcome(check.what, "failed", f"{type(error).__name__}: {words}"[:400])
    return Outcome(check.what, "ok")
