"""Config files and `--set`: `run()` gives a config, `sweep()` the rows of an ablation, and
`--set inner.steps=50` changes a setting by name, checked against the type of its field.
"""

import ast
import contextlib
import dataclasses
import json
import re
import runpy
import sys
import traceback
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast, get_type_hints

import msgspec

from dipaco import shipped
from dipaco.config import RunConfig
from dipaco.config.run_config import LEAST_VOCABULARY
from dipaco.errors import (
    BadConfigFile,
    BadOverride,
    BadSetting,
    BadSweep,
    DipacoError,
    UnknownSetting,
)
from dipaco.model.config import ModelConfig, part_names
from dipaco.settings import check_types, hint_for, kind_in_words, kinds_of, plain
from dipaco.topology import Topology, grid
from dipaco.topology.grids import MOST_PATHS, experts_of, num_blocks

LARGEST = 2**63 - 1  # the largest whole number that a float and a database can have
MOST_NAME_BYTES = 100  # of a row, which is a folder
GRID_EXPECTED = (
    "a grid of levels and their modules, as in topology=2x3 (two levels, of 2 and of 3 modules), "
    f"2x2x2 or 4, with at most {MOST_PATHS:,} paths"
)
GRID_HINT = (
    " Private parts, replicas and other levels are written in a config file: "
    "`dipaco config copy quickstart my.py`."
)

# For these settings `none` may mean either of two things.
_TOKENS = {
    "data.start_token": "a token's name, None (the tokenizer's own), or nothing (texts have none)",
    "data.end_token": "a token's name, or None (the tokenizer's own)",
}


def load_config(file: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Runs a config file's `run()` and applies `NAME=VALUE` overrides.

    Args:
      file: a file, or the name of a shipped config (`quickstart`).
      overrides: settings to change, as `--set` has them. A single one may stand alone.

    Raises:
      BadConfigFile: no such file, it does not run, or it has no `run() -> RunConfig`.
      BadSetting: a value in it, or of an override, is not what its setting takes.
      UnknownSetting, BadOverride: an override does not fit.
    """
    file = _found(Path(file))
    config = _call(file, "run", "RunConfig")
    if not isinstance(config, RunConfig):
        raise BadConfigFile(
            file=file, problem=f"`run()` returned {type(config).__name__}, not RunConfig"
        )
    return override(config, overrides)


def load_sweep(file: Path, overrides: Sequence[str] = ()) -> dict[str, RunConfig]:
    """Runs the `sweep()` of a file, or of a shipped one by name, and applies `NAME=VALUE` overrides
    to each of its rows.

    Raises:
      BadConfigFile: no such file, it does not run, or it has no `sweep()`.
      BadSweep: it has no rows, a row is no config, has a value that its setting does not take or
        does not fit an override, a name cannot name a folder, or two are equal.
    """
    file = _found(file)
    rows = _call(file, "sweep", "dict[str, RunConfig]")
    if not isinstance(rows, dict) or not rows:
        what = "no rows" if isinstance(rows, dict) else type(rows).__name__
        raise BadSweep(file=file, problem=f"`sweep()` returned {what}, not dict[str, RunConfig]")
    if twice := _keys_written_twice(file):
        raise BadSweep(
            file=file,
            problem=f"it names the row `{twice[0]}` twice, and Python keeps the last of them. "
            "Rename one",
        )
    folders: dict[str, str] = {}
    for name, config in rows.items():
        is_text = isinstance(name, str) and len(name.encode()) <= MOST_NAME_BYTES
        if not is_text or not re.fullmatch(r"\w[\w .+-]*", name):
            raise BadSweep(
                file=file,
                problem=f"`{name}` cannot name a row: use letters, digits, spaces and _ . + -, "
                f"a letter or digit first, {MOST_NAME_BYTES} bytes at most",
            )
        if re.search(r"_(best_path|every_\d+|by_\w+|ensemble(_2|_renewed)?)$", name):
            raise BadSweep(
                file=file,
                problem=f"its row `{name}` has a name that the table gives to results of a row "
                "(NAME_best_path, NAME_every_16, NAME_by_likelihood, NAME_ensemble). Rename it",
            )
        other = folders.setdefault(row_folder(name), name)
        if other != name:
            raise BadSweep(
                file=file, problem=f"its rows `{other}` and `{name}` would share a folder"
            )
        if not isinstance(config, RunConfig):
            raise BadSweep(
                file=file, problem=f"its row `{name}` is {type(config).__name__}, not RunConfig"
            )
    return {name: _override_row(file, name, config, overrides) for name, config in rows.items()}


def row_folder(name: str) -> str:
    """The folder of a row, in lower case: some file systems ignore case."""
    return name.strip().replace(" ", "_").lower()


def _override_row(file: Path, name: str, config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    try:
        return override(config, overrides)
    except DipacoError as error:
        if isinstance(error, (UnknownSetting, BadOverride)):
            raise  # a mistake of the command line, not of a row
        problem = str(error).rstrip(".")
        raise BadSweep(file=file, problem=f"its row `{name}`: {problem}") from error


def _keys_written_twice(file: Path) -> list[str]:
    """Names written twice in one `{...}` of the file: Python keeps the last without a word."""
    twice = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Dict):
            keys = [
                key.value
                for key in node.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
            twice += [key for number, key in enumerate(keys) if key in keys[:number]]
    return twice


def _found(file: Path) -> Path:
    """The file, or the shipped one of that name."""
    found = shipped.find_file(file)
    if found is None:
        problem = (
            f"there is no such file, and no shipped config of this name: {shipped.names_like(file)}"
        )
        raise BadConfigFile(file=file, problem=problem)
    return found


def _call(file: Path, function: str, kind: str) -> Any:
    """Runs the config file and returns the value of `function()`."""
    try:
        with _importing_from(*_folders_of(file)):  # a variant imports the config that it edits
            called = runpy.run_path(str(file)).get(function)
            value = called() if callable(called) else None
    except DipacoError:
        raise
    except Exception as error:
        place = _place_of(error, file)
        if (bad := _bad_setting_of(error, place)) is not None:
            raise bad from error
        problem = f"{type(error).__name__}: {error}{place and f' ({place})'}"
        raise BadConfigFile(file=file, problem=problem) from error
    if not callable(called):
        raise BadConfigFile(file=file, problem=f"it has no function `{function}() -> {kind}`")
    return value


def _place_of(error: Exception, file: Path) -> str:
    """The place at which a config file, or one beside it, failed: `my.py, line 4`. Empty if none of
    them ran, and for a syntax error, whose message has the place.
    """
    if isinstance(error, SyntaxError):
        return ""
    folder = file.resolve().parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        failed = Path(frame.filename)
        if failed.is_file() and failed.resolve().parent == folder:
            return f"{failed.name}, line {frame.lineno}"
    return ""


def _bad_setting_of(error: Exception, place: str) -> BadSetting | None:
    """The value of a wrong type that the checks of a config met, such as a text compared to a
    number. None if they met none.
    """
    names = dict(kinds_of(RunConfig))
    for frame, _ in traceback.walk_tb(error.__traceback__):
        checked = frame.f_locals.get("self")
        if type(checked) in names:
            try:
                check_types(type(checked), checked, names[type(checked)])
            except BadSetting as bad:
                values = {**bad.values, "hint": place and f" See {place}."}
                return BadSetting(**cast(Any, values))
    return None


def _folders_of(file: Path) -> tuple[Path, ...]:
    """The folders from which a config file imports others: its folder, in `ablations` the one above
    it, and the shipped ones.
    """
    folder = file.resolve().parent
    above = (folder.parent,) if folder.name == "ablations" else ()
    return tuple(dict.fromkeys((folder, *above, *shipped.folders())))


@contextlib.contextmanager
def _importing_from(*folders: Path) -> Generator[None]:
    """Puts `folders` on the import path inside the block. Forgets their modules afterwards."""
    before = set(sys.modules)
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None)
            if origin is not None and Path(origin).parent in folders:
                del sys.modules[name]


def override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The config with `NAME=VALUE` settings changed, all at once: some must change together.

    `topology=2x3` makes a grid of the model's blocks, after all that is set of the model.
    `data.tokenizer` sets `model.vocab_size`, unless that is set too. A single text is one setting.
    """
    overrides = [overrides] if isinstance(overrides, str) else overrides
    tree = dataclasses.asdict(config)
    names: dict[str, str] = {}
    for text in overrides:
        name, equals, value = (word.strip() for word in text.partition("="))
        if not equals or not name:
            raise BadOverride(text=text)
        names[name] = value
        if name.startswith("topology.") and not value.startswith("["):
            raise BadSetting(name=name, value=value, expected=GRID_EXPECTED, hint=GRID_HINT)
        if name != "topology":
            _put(tree, RunConfig, name, value)
    tokenizer = tree["data"]["tokenizer"]
    sets_size = "data.tokenizer" in names and "model.vocab_size" not in names
    if tokenizer is not None and sets_size and Path(tokenizer).is_file():
        from dipaco.data.tokenizer import load_tokenizer

        tree["model"]["vocab_size"] = max(LEAST_VOCABULARY, load_tokenizer(tokenizer).vocab_size)
    if "topology" in names:
        tree["topology"] = dataclasses.asdict(_grid(tree["model"], names["topology"]))
    return from_tree(tree)


def _grid(model: dict[str, Any], text: str) -> Topology:
    check_types(ModelConfig, model, "model")
    parts = part_names(msgspec.convert(model, ModelConfig))
    experts, most = experts_of(text), num_blocks(parts)
    if experts is None:
        raise BadSetting(name="topology", value=text, expected=GRID_EXPECTED, hint=GRID_HINT)
    if len(experts) > most:
        expected = f"at most {most} levels, since the model has {most} blocks (`model.num_layers`)"
        raise BadSetting(name="topology", value=text, expected=expected)
    return grid(parts, experts)


def from_tree(tree: dict[str, Any]) -> RunConfig:
    """A config from its JSON form, in which numbers may be NumPy's. Raises `BadSetting`: a value is
    not of its setting's type.
    """
    tree = plain(tree)
    try:
        return msgspec.convert(tree, RunConfig)
    except msgspec.ValidationError:
        check_types(RunConfig, tree)  # raises, and names the setting
        raise


def settings(config: RunConfig) -> dict[str, Any]:
    """Every setting by its full name, `inner.steps` -> 150."""
    return dict(_leaves(dataclasses.asdict(config)))


def _leaves(tree: dict[str, Any], prefix: str = ""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _put(tree: dict[str, Any], kind: Any, full_name: str, text: str) -> None:
    node = tree
    *groups, last = full_name.split(".")
    for group in groups:
        kind = get_type_hints(kind).get(group) if dataclasses.is_dataclass(kind) else None
        if not dataclasses.is_dataclass(kind):
            raise UnknownSetting(name=full_name, hint=hint_for(RunConfig, full_name))
        node = node[group]
    hints = get_type_hints(kind)
    if last not in hints:
        raise UnknownSetting(name=full_name, hint=hint_for(RunConfig, full_name))
    if dataclasses.is_dataclass(hints[last]):
        fields = ", ".join(f"{full_name}.{f.name}" for f in dataclasses.fields(hints[last]))
        raise UnknownSetting(name=full_name, hint=f" It is a group; set one of {fields}.")
    node[last] = _read(full_name, text, hints[last])


def _read(name: str, text: str, kind: Any) -> Any:
    """The value that `text` stands for, of the field's type, as plain JSON values."""
    candidates: list[Any] = [[] if text == "()" else text]
    if text == "none" and name in _TOKENS:
        raise BadSetting(name=name, value=text, expected=_TOKENS[name])
    if text == "none":
        candidates.append([])
    if text in ("None", "none", "null"):
        candidates.insert(0, None)
    if text in ("True", "False"):
        candidates.insert(0, text == "True")
    try:
        candidates.insert(0, json.loads(text, parse_constant=_refuse_constant))
    except ValueError:
        pieces = [piece for piece in text.split(",") if piece]
        candidates += [_number(text), [_number(piece) for piece in pieces], pieces]
    with contextlib.suppress(ValueError):  # numbers: `16,32`, and a list of one
        candidates.append(json.loads(f"[{text}]", parse_constant=_refuse_constant))
    problem: Exception | None = None
    for candidate in candidates:
        try:
            value = msgspec.to_builtins(msgspec.convert(candidate, kind))
            if isinstance(value, int) and abs(value) > LARGEST:
                raise BadSetting(name=name, value=text, expected="at most 2^63 - 1 in size")
            return value
        except (msgspec.ValidationError, DipacoError) as error:
            problem = problem or error
    if isinstance(problem, DipacoError):
        raise problem
    raise BadSetting(name=name, value=text, expected=kind_in_words(kind)) from problem


def _number(text: str) -> int | float | str:
    """Numbers that JSON does not know: `.5`, `1.`, `+3e-3`. Anything else is returned unchanged."""
    if re.fullmatch(r"[+-]?\d+", text):
        with contextlib.suppress(ValueError):  # more digits than Python reads become inf
            return int(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return float(text)
    return text


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a value for a setting")
