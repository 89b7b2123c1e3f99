"""Errors of this room: ledgers and databases that refuse, and claims that were lost. The docstring of a class is its message."""

from dipaco.errors import DipacoError, LastingError, MachineFault


class LedgerVersion(DipacoError):
    """The ledger {file} has schema version {found}, this program writes {expected}.
    Use the program version that wrote it last, or start a new run folder.
    """


class LedgerOnOtherHost(DipacoError):
    """The ledger {file} is in use on another machine, {host}, and SQLite serves one machine only. Stop the processes there first; for workers on several machines, begin the run with its facts on a server: --database postgresql://HOST/NAME."""


class BadDatabase(DipacoError):
    """`{given}` is not a database. Expected postgresql://HOST/NAME, or env:VARIABLE for a variable that holds such a URL; without --database, the facts are in SQLite in the run's folder."""


class BadDatabaseURL(DipacoError):
    """The URL of the database {place} cannot be read: {problem}. Expected postgresql://USER@HOST:PORT/NAME; user, port and name may be left out. In a user or password, `/` is written `%2F`, `@` `%40`, `#` `%23` and `%` `%25`."""


class PasswordOnCommandLine(DipacoError):
    """The URL of {place} has a password in it, and everyone on this machine can read command lines.
    Put the URL into an environment variable and give `env:VARIABLE`, or use PostgreSQL's password file (~/.pgpass).
    """


class VariableMissing(MachineFault):
    """The database is given as `env:{variable}`, and the environment variable `{variable}` is not set, or empty. Set it to the URL, postgresql://USER:PASSWORD@HOST/NAME."""


class DatabaseRefuses(MachineFault):
    """The database {place} refuses: {problem}. Check user, password and database name."""


class DatabaseUnreachable(MachineFault):
    """The database {place} could not be reached for {seconds:.0f} s: {problem}. What was recorded is safe. Check its URL, and start the same command again when it is back."""


class BadName(DipacoError):
    """`{name}` is not a valid name. Expected letters, digits, `-`, `_` and `.`, a letter or digit first, 100 bytes at most."""


class NotReproduced(DipacoError):
    """`{task}` was done again because its result was lost, and its new result ({new}) differs from the first ({known}): this machine or its libraries compute differently. Do it on a machine like the first, or start again from an earlier phase with --from."""


class RecoveryFailed(LastingError):
    """`{task}` has been done again {times} times, and {what} is still wrong: {reason} Check the disk and the machines; what was recorded before is in the ledger."""


class CannotClean(DipacoError):
    """The run cannot be cleaned: {problem} Nothing was removed."""


class RunCleaned(DipacoError):
    """`dipaco clean` has removed what this run would go on from. Start another one from its modules: `dipaco train CONFIG --run DIR --from RUN@PHASE`, with the phase of its newest release. Nothing was changed."""


class NotAvailable(DipacoError):
    """This run has no {what} yet. `dipaco status --run DIR` shows how far it is; `dipaco train` continues it."""


class NoSuchRelease(NotAvailable):
    """This run has no release of `{arm}` at phase {phase}. It has releases of phases: {known}."""
