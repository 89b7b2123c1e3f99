"""Begins, finds and opens runs. A run begins whole or not at all, with the config that it keeps."""

import contextlib
import dataclasses
import difflib
import json
import re
import uuid
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, NoReturn

from dipaco import overrides
from dipaco.config import ReportSettings, RunConfig
from dipaco.control.database.location import DatabaseLocation, location_of, new_schema
from dipaco.control.ledger import Ledger, install_ledger, open_ledger
from dipaco.errors import LedgerDamaged
from dipaco.files import translate_os_errors, write_new
from dipaco.plural import listed
from dipaco.runs.errors import (
    DatabaseNeeded,
    FolderHoldsOther,
    FolderHoldsSweep,
    LinkLeadsNowhere,
    NoSuchRun,
    RunIsFile,
    RunOfOtherConfig,
    RunOfOtherDatabase,
    RunOfOtherRules,
)
from dipaco.runs.rules import Recorded, check_settings, imported, phrase
from dipaco.runs.run import Run
from dipaco.runs.version import check_program, check_version, described_version
from dipaco.store.address import Address, Where
from dipaco.store.layout import Layout, SweepLayout

SOME = 3  # So many folders that are in the way, or settings that differ, are named.
ENDS_WITH_BASE = "ends_with_base"  # given to a run of which others take the base model
NOBODYS = (".", "_", "@", "#")  # Editors, Python and file servers begin names with these.


def create_or_open(
    where: Where,
    config: RunConfig,
    given: Mapping[str, Any] | None = None,
    database: str | None = None,
    rules: Recorded | None = None,
    *,
    is_alone: bool = False,
) -> tuple[Run, bool]:
    """Begins a run, or opens the one that is there. True: it was begun.

    Args:
      config: equal to the config of a run that is there, but for settings of its report, which
        `with_report_settings` takes over.
      given: JSON values to start from. They are only read when a run begins.
      rules: its own rules. None: the rules of the run that is there, if any.
      is_alone: the folder's lock is held exclusively, so no other process works on a run that is
        there: one that has recorded nothing begins again with another config.

    Raises:
      SettingsDisagree, BadSetting: a new run's rules do not go with a setting, or one would have no
        effect.
      RunOfOtherConfig, RunOfOtherRules, RuleDiffers, RunOfOtherVersion, RunOfOtherDatabase: there
        is another run; it is left as it was.
      DatabaseNeeded: a run at a URL cannot have its facts in a folder.
    """
    address = Address.of(where)
    if find_run(address) is not None:
        run = open_run(address, database)
        if is_same(run, config, rules):
            return run, False
        if run.database_location.is_server or not is_alone or has_facts(run):
            _refuse_other(run, config, rules)
        run.ledger.close()
        # Nothing is recorded, not even its text: it begins again with the corrected config.
    check_settings(config, rules or {})
    given = {**(given or {}), **({"rules": rules} if rules else {})}
    is_new = _begin(address, config, given, database)
    run = open_run(address, database)
    if not is_same(run, config, rules):  # another process began it at the same moment
        _refuse_other(run, config, rules)
    return run, is_new


def is_same(run: Run, config: RunConfig, rules: Recorded | None) -> bool:
    """True if a run is the one that is asked for, but for settings of its report. `create_or_open`
    explains `rules`.
    """
    is_of_config = _but_for_the_report(config, run.requested_config)
    return is_of_config and (rules is None or rules == run.rules)


def _but_for_the_report(config: RunConfig, there: RunConfig) -> bool:
    """True if settings are equal. Settings of retention are never taken over: a command without the
    `--set` of the first would delete what the first one kept.
    """
    return dataclasses.replace(config, report=there.report) == there


def with_report_settings(run: Run, config: RunConfig) -> Run:
    """The run, opened again with the report's settings of `config` as its own. A table that is
    written is written again when it is shown.

    Raises:
      RunOfOtherVersion: tasks are to do, by another program. Nothing was changed.
    """
    if config.report == run.requested_config.report:
        return run
    if run.ledger.queue.unfinished_kinds():
        check_program(run.address, run.ledger.meta.get("version") or "")
    run.ledger.meta.change_config(config.to_json())
    run.ledger.close()
    return open_run(run.address)


def report_settings_now(run: Run) -> ReportSettings:
    """Those that the run has by now: another process may have changed them since it was opened."""
    config = run.ledger.meta.get("config")
    assert config is not None, "it was there when the run was opened"
    return overrides.from_tree(json.loads(config)).report


def _refuse_other(run: Run, config: RunConfig, rules: Recorded | None) -> NoReturn:
    run.ledger.close()
    there = run.requested_config
    if not _but_for_the_report(config, there):
        raise RunOfOtherConfig(folder=run.address, difference=difference(there, config))
    assert rules is not None, "only what was given can differ"
    names = {kind: rule.name for kind, rule in rules.items()}
    if names == {kind: rule.name for kind, rule in run.rules.items()}:
        for kind, rule in run.rules.items():
            imported(kind, rule)  # raises `RuleDiffers`
    raise RunOfOtherRules(folder=run.address, there=phrase(run.rules), given=phrase(rules))


def _begin(
    address: Address, config: RunConfig, given: Mapping[str, Any], database: str | None
) -> bool:
    """Writes the ledger with its config, whole or not at all. False: another process began the run
    at the same moment, and that one counts.
    """
    final = Layout(address.folder).ledger
    meta = {
        "run": uuid.uuid4().hex,
        "config": config.to_json(),
        "version": described_version(),
        **{key: json.dumps(value) for key, value in given.items()},
    }
    is_prepared = (Layout(address.folder).corpus / "manifest.json").exists()  # Another run did it.
    slices = 0 if is_prepared else config.data.slices
    with translate_os_errors(final):
        address.folder.mkdir(parents=True, exist_ok=True)
        if database is not None:
            here = FoundRun(database, new_schema(address.name))
            with open_ledger(*location_of(final, *here)) as ledger:
                ledger.start(meta, slices)
                # The marker last: the run exists when its marker does.
                is_first = _mark(address, here)
                if not is_first:
                    ledger.drop()
            return is_first
        if address.url is not None:
            raise DatabaseNeeded(run=address)
        partial = final.with_name(f"{final.name}.partial")
        partial.unlink(missing_ok=True)
        with open_ledger(partial) as ledger:
            ledger.start(meta, slices)
        install_ledger(partial, final)
        return True


class FoundRun(NamedTuple):
    """Facts about a run that need no open ledger."""

    database: str | None  # the value of `--database`, None = its folder
    schema: str = ""  # on that server


def _mark(address: Address, run: FoundRun) -> bool:
    """Writes where the facts of a run are, unless that is written already: False."""
    file, content = Layout(address.folder).database, json.dumps(run._asdict()).encode()
    if address.remote is None:
        return write_new(file, content)
    if address.remote.write_new(file.name, content):
        return True
    return (
        address.remote.read(file.name) == content
    )  # A first attempt of this very request wrote it.


def find_run(address: Address) -> FoundRun | None:
    """Looks for a run without opening its ledger. None: there is none.

    Raises:
      RunIsFile, BucketMissing, LinkLeadsNowhere: there is no place for one either.
    """
    layout = Layout(address.folder)
    if address.folder.exists() and not address.folder.is_dir():
        raise RunIsFile(folder=address)
    if address.remote is not None:
        there = address.remote.read(layout.database.name)
        if there is None:  # A read says no more if there is no bucket. A list raises.
            address.remote.names(layout.database.name)
        return None if there is None else _parse_marker(address, there)
    for link in (address.folder, *address.folder.parents):
        if link.is_symlink() and not link.exists():
            raise LinkLeadsNowhere(folder=address, link=link, target=link.readlink())
    if layout.database.exists():
        return _parse_marker(address, layout.database.read_bytes())
    return FoundRun(None) if layout.ledger.exists() else None


def _parse_marker(address: Address, content: bytes) -> FoundRun:
    try:
        found = FoundRun(**json.loads(content))
        if not isinstance(found.database, str) or not re.fullmatch(r"[a-z0-9_]+", found.schema):
            raise TypeError(found)
        return found
    except (ValueError, TypeError) as error:
        raise LedgerDamaged(
            file=address.place_of(Layout(address.folder).database),
            problem="it does not say where the facts of its run are",
        ) from error


def database_option(where: Where) -> str | None:
    """The `--database` that a run was begun with, fit to be shown. None: its folder."""
    found = find_run(Address.of(where))
    return None if found is None else found.database


def open_run(where: Where, database: str | None = None) -> Run:
    """Opens the run in a folder or at a URL.

    Raises:
      NoSuchRun: there is no run.
      RunOfOtherDatabase: its facts are in another database.
      RunOfOtherVersion: it is one of another version of the program.
      LedgerDamaged: its ledger cannot be read.
    """
    address = Address.of(where)
    database_location = database_location_of(address, database)
    if address.url is not None:  # the first time on this machine
        address.folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(*database_location)
    try:
        version, config = ledger.meta.get("version"), ledger.meta.get("config")
        if version is None or config is None:
            raise LedgerDamaged(
                file=database_location.name, problem="it does not say which run it is of"
            )
        check_version(address, version)
        return Run(address, overrides.from_tree(json.loads(config)), database_location, ledger)
    except BaseException:
        ledger.close()
        raise


def _meant_by(address: Address) -> str:
    """A run beside a folder that is not there, with nearly its name, as a sentence."""
    if address.url is not None or address.folder.exists() or not address.folder.parent.is_dir():
        return ""
    beside = [each.name for each in address.folder.parent.iterdir() if Layout(each).ledger.exists()]
    near = difflib.get_close_matches(address.folder.name, beside, n=1)
    return f"Did you mean {address.folder.parent / near[0]}? " if near else ""


def database_location_of(where: Where, database: str | None = None) -> DatabaseLocation:
    """The database with the facts of a run.

    Raises:
      NoSuchRun, FolderHoldsSweep, RunOfOtherDatabase.
    """
    address = Address.of(where)
    file = Layout(address.folder).ledger
    begun = find_run(address)
    if begun is None:
        refuse_sweep(address)
        raise NoSuchRun(folder=address, meant=_meant_by(address))
    if database is not None and database != begun.database:
        location_of(file, database)  # refuses a password before one is shown
        there = begun.database or file
        raise RunOfOtherDatabase(folder=address, there=there, given=database)
    return location_of(file, *begun)


def check_folder(address: Address) -> None:
    """Refuses an address where there is no run and no place for one.

    Raises:
      RunIsFile, FolderHoldsSweep: something else is there.
      BucketMissing, LinkLeadsNowhere: its disk or bucket is not there.
      FolderHoldsOther: there are folders of no run, as in a folder that holds several runs.
    """
    refuse_sweep(address)
    folder = address.folder
    if find_run(address) is None and address.url is None and folder.exists():
        own = Layout(folder).folders
        with translate_os_errors(folder):
            others = sorted(
                each.name
                for each in folder.iterdir()
                if each.is_dir() and not each.name.startswith(NOBODYS) and each.name not in own
            )
        if others:
            raise FolderHoldsOther(folder=folder, others=listed(others, SOME))


def refuse_sweep(address: Address) -> None:
    """Raises `FolderHoldsSweep` where a folder is not a run's but a sweep's."""
    if SweepLayout(address.folder).sweep.exists():
        raise FolderHoldsSweep(folder=address)


def has_begun(
    where: Where,
    config: RunConfig,
    rules: Recorded | None = None,
    *,
    is_alone: bool = False,
) -> bool:
    """True if there is a run to go on with. It has this config and rules, and its own facts, or
    another process may work on it, which `is_alone` of `create_or_open` rules out.
    """
    address = Address.of(where)
    if find_run(address) is None:
        return False
    with reading(address) as run:
        return is_same(run, config, rules) or not is_alone or has_facts(run)


def has_facts(run: Run) -> bool:
    """True if something is recorded: a stage, or a slice of the first one, its text."""
    facts = run.ledger.facts
    return bool(facts.stages() or facts.slices("prepare"))


@contextlib.contextmanager
def reading(where: Where) -> Generator[Run]:
    """A run for commands that only read it. Raises as `open_run`."""
    run = open_run(where)
    try:
        yield run
    finally:
        run.ledger.close()


def difference(there: RunConfig, here: RunConfig, most: int = SOME) -> str:
    """The settings that differ, so many of them, as a phrase."""
    before, now = overrides.settings(there), overrides.settings(here)
    changed = [
        f"`{name}` was {before.get(name)} and is {now.get(name)}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    return listed(changed, most, "; ")
