"""What a person reads of a setting: its name, type, default and sentence.

The sentence is the text right below the field of a config's dataclass, and what may stand there is
the field's type; a group's sentence is the docstring of its class. The page of settings and
`dipaco config show --explain` are made from these, and from nothing else.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from dipaco.errors import BadSetting, UnknownSetting

REQUIRED = object()  # the default of a setting that every config has to give


class Setting(NamedTuple):
    """One setting of a config."""

    name: str  # its whole name: `inner.steps`
    kind: Any  # the type of its field
    default: Any  # REQUIRED: it has none
    sentence: str  # what it is, with its unit; on one line

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that may stand there; empty where there are more than can be listed."""
        return choices_of(self.kind)


class SettingsGroup(NamedTuple):
    """The settings of one dataclass, without those of the groups in it."""

    name: str  # `inner`; empty for what is in no group
    sentence: str
    settings: tuple[Setting, ...]


def groups_of(kind: type, name: str = "") -> Iterator[SettingsGroup]:
    """The groups of settings that a tree of dataclasses has, the top one first.

    A list of dataclasses is a setting, and its items' fields are a group as well.
    """
    hints, sentences = get_type_hints(kind), sentences_of(kind)
    prefix = f"{name}." if name else ""
    settings, below = [], []
    for field in dataclasses.fields(cast(Any, kind)):
        hint = hints[field.name]
        inside = [part for part in (hint, *get_args(hint)) if dataclasses.is_dataclass(part)]
        below += [(part, f"{prefix}{field.name}") for part in inside]
        if hint in inside and field.name not in sentences:
            continue  # its class says what the group is
        default = REQUIRED if field.default is dataclasses.MISSING else field.default
        sentence = sentences.get(field.name, "")
        settings.append(Setting(f"{prefix}{field.name}", hint, default, sentence))
    yield SettingsGroup(name, _on_one_line(inspect.getdoc(kind) or ""), tuple(settings))
    for part, full_name in below:
        yield from groups_of(part, full_name)


@functools.cache
def sentences_of(kind: type) -> dict[str, str]:
    """Field -> the text right below it in the class, on one line; fields without one are absent."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = _on_one_line(text.value.value)
    return found


def kinds_of(kind: type, name: str = "") -> Iterator[tuple[type, str]]:
    """The dataclasses of a tree of settings, and the names of the groups that they are."""
    yield kind, name
    prefix = f"{name}." if name else ""
    for field, hint in get_type_hints(kind).items():
        for part in (hint, *get_args(hint)):
            if dataclasses.is_dataclass(part):
                yield from kinds_of(cast(type, part), f"{prefix}{field}")


def check_types(kind: type, values: Any, name: str = "") -> None:
    """Checks that values are of the types of a dataclass's fields, and of those in it.

    Args:
      kind: the dataclass.
      values: an instance of it, or the same as a dict.
      name: of the group that it is.

    Raises:
      BadSetting: names the first that is not.
    """
    given = values if isinstance(values, dict) else vars(values)
    prefix = f"{name}." if name else ""
    for field, hint in get_type_hints(kind).items():
        if field in given:
            _check_type(hint, given[field], f"{prefix}{field}")


def _check_type(kind: Any, value: Any, name: str) -> None:
    items = [part for part in get_args(kind) if dataclasses.is_dataclass(part)]
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, (cast(type, kind), dict)):
            raise BadSetting(name=name, value=value, expected=f"an instance of `{kind.__name__}`")
        check_types(cast(type, kind), value, name)
    elif items and isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check_type(items[0], item, f"{name}[{number}]")
    else:
        try:
            msgspec.convert(plain(value), kind)
        except msgspec.ValidationError:
            raise BadSetting(name=name, value=value, expected=kind_in_words(kind)) from None


def plain(value: Any) -> Any:
    """A tree of settings with Python's own values for those of NumPy, as `np.logspace` gives them:
    what reads and records settings takes no others.
    """
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def find(kind: type, name: str) -> list[SettingsGroup]:
    """What a name means: a group with the groups in it, or the settings of that name, with or
    without their group's; all groups where the name is empty.

    Raises:
      UnknownSetting: no setting or group has that name.
    """
    found = []
    for group in groups_of(kind):
        if not name or f"{group.name}.".startswith(f"{name}."):
            found.append(group)
        elif named := tuple(
            setting for setting in group.settings if f".{setting.name}".endswith(f".{name}")
        ):
            found.append(SettingsGroup("", "", named))
    if not found:
        raise UnknownSetting(name=name, hint=hint_for(kind, name))
    return found


def hint_for(kind: type, name: str) -> str:
    """What may have been meant by a name that no setting has, as the end of a message."""
    known = [setting.name for group in groups_of(kind) for setting in group.settings]
    last = name.rpartition(".")[2]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    of_last = [other for other in known if other.rpartition(".")[2] == last]
    if meant := (of_last or close if name == last else close or of_last):
        return f" Did you mean {' or '.join(f'`{each}`' for each in meant)}?"
    return " `dipaco config show CONFIG` lists them all."


def choices_of(kind: Any) -> tuple[Any, ...]:
    """The values of a `Literal`, also of one inside a list or beside None."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    inside = (choices_of(part) for part in get_args(kind) if part is not Ellipsis)
    return tuple(value for choices in inside for value in choices)


def kind_in_words(kind: Any) -> str:
    """What may stand there: `a whole number, or None`, `one of auto, plain`, `whole numbers`."""
    simple = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "None",
    }
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        item = kind_in_words(get_args(kind)[0])
        if choices_of(kind):
            return item.replace("one of", "any of", 1)
        return "texts" if item == "text" else f"{item.removeprefix('a ')}s"
    if get_origin(kind) in (Union, types.UnionType):
        return ", or ".join(map(kind_in_words, get_args(kind)))
    return "a grid, as 2x3" if kind.__name__ == "Topology" else kind.__name__.lower()


def describe_kind(setting: Setting) -> str:
    """What may stand there, and its default: `a whole number; default 150`."""
    has_default = setting.default is not REQUIRED
    default = f"default {value_in_words(setting.default)}" if has_default else "no default"
    return f"{kind_in_words(setting.kind)}; {default}"


def value_in_words(value: Any) -> str:
    """A value as `--set` takes it: `true`, `None`, `2,4`; `()` = an empty list."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return ",".join(map(value_in_words, value)) if value else "()"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
