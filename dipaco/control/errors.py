"""Errors of this room: ledgers and databases that refuse, and claims that were lost. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class LedgerVersion(DipacoError):
    """The ledger {file} has schema version {found}, this program writes {expected}.
    Use the program version that wrote it last, or start a new run folder.
    """


class LedgerOlder(DipacoError):
    """The ledger {file} has schema version {found}, and this program works with {expected}. `dipaco upgrade --run RUN` brings it there, when the run's workers have left. Nothing was changed."""


class BadDatabase(DipacoError):
    """`{given}` is no database. Give postgresql://HOST/NAME, or env:VARIABLE with such a URL in it; leave it out for SQLite in the run's folder."""


class PasswordOnCommandLine(DipacoError):
    """The URL of {place} has a password in it, and everyone on this machine can read command lines.
    Put the URL into an environment variable and give `env:VARIABLE`, or use PostgreSQL's password file (~/.pgpass).
    """


class VariableMissing(DipacoError):
    """The database is given as `env:{variable}`, and there is no environment variable `{variable}`. Set it to the URL, postgresql://USER:PASSWORD@HOST/NAME."""


class DatabaseRefuses(DipacoError):
    """The database {place} refuses: {problem}. Check user, password and database name."""


class DatabaseUnreachable(DipacoError):
    """The database {place} could not be reached for {seconds:.0f} s: {problem}. What was recorded is safe; start the same command again when it is back."""


class BadName(DipacoError):
    """`{name}` is no name. Take letters, digits, `-`, `_` and `.`, the first a letter or digit, 100 bytes at most."""


class NotReproduced(DipacoError):
    """`{task}` was done again, since what it made was lost, and gave other bytes ({new}) than the first time ({known}): this machine, or its libraries, are of another kind. Do it where it was done first, or start again from an earlier phase with --from."""


class RecoveryFailed(DipacoError):
    """`{task}` has been done again {times} times, and still {what} is not right: {reason} Look at the disk and the machines; the ledger holds what was recorded before."""


class NotAvailable(DipacoError):
    """This run has no {what} yet. `dipaco status --run DIR` shows how far it is; `dipaco train` takes it on."""


class NoSuchRelease(NotAvailable):
    """This run has no release of `{arm}` at phase {phase}. There are those of these phases: {known}."""
