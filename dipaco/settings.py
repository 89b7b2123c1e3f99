"""Settings as a person reads them: name, type, bounds, default and sentence.

The sentence is the text right below the field of a config's dataclass. The values that a setting
takes are given by the field's type with its bounds, as in `Annotated[int, Ge(1)]`. A text among the
bounds says more about them. A group's sentence is the docstring of its class. The page of settings,
`dipaco config show --explain` and the check of a value are made from these, and from nothing else.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import math
import operator
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt

from dipaco.errors import BadSetting, UnknownSetting

REQUIRED = object()  # the default of a setting that every config has to give

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
_HOLDS = {Ge: operator.ge, Gt: operator.gt, Le: operator.le, Lt: operator.lt}


class Setting(NamedTuple):
    """One setting of a config."""

    name: str  # its whole name: `inner.steps`
    kind: Any  # the type of its field, with its bounds
    default: Any  # REQUIRED: it has none
    sentence: str  # its meaning with its unit, on one line

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values that it takes. Empty if there are more than can be listed."""
        return choices_of(self.kind)


class SettingsGroup(NamedTuple):
    """The settings of one dataclass, without the groups in it."""

    name: str  # `inner`. Empty for settings in no group
    sentence: str
    settings: tuple[Setting, ...]


def groups_of(kind: type, name: str = "") -> Iterator[SettingsGroup]:
    """The groups of settings that a tree of dataclasses has, the top one first.

    A list of dataclasses is a setting, and its items' fields are a group as well.
    """
    hints, sentences = get_type_hints(kind), sentences_of(kind)
    with_bounds = get_type_hints(kind, include_extras=True)
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
        settings.append(
            Setting(f"{prefix}{field.name}", with_bounds[field.name], default, sentence)
        )
    yield SettingsGroup(name, _on_one_line(inspect.getdoc(kind) or ""), tuple(settings))
    for part, full_name in below:
        yield from groups_of(part, full_name)


@functools.cache
def sentences_of(kind: type) -> dict[str, str]:
    """Field -> the text right below it in the class, on one line. Fields without one are absent."""
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
    """Checks that values have the types of a dataclass's fields, nested dataclasses included.

    Args:
      values: an instance of the dataclass, or the same as a dict.
      name: the group's name.

    Raises:
      BadSetting: names the first value that has not.
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
        import msgspec  # only now: a benchmark of programs alone runs without it

        try:
            msgspec.convert(plain(value), kind)
        except msgspec.ValidationError:
            raise BadSetting(name=name, value=value, expected=kind_in_words(kind)) from None


def check_values(settings: Any, group: str = "") -> None:
    """Checks the values of a dataclass against the bounds and choices of its fields.

    Raises:
      BadSetting: names the first that is outside.
    """
    prefix = f"{group}." if group else ""
    for field, (is_inside, expected) in _checks_of(type(settings)).items():
        value = getattr(settings, field)
        if not is_inside(value):
            raise BadSetting(name=f"{prefix}{field}", value=value, expected=expected)


@functools.cache
def _checks_of(kind: type) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Field -> (test of a value, the allowed values in words). Fields without bounds are absent."""
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {}
    for field, hint in get_type_hints(kind, include_extras=True).items():
        or_none = type(None) in get_args(hint)
        bounded = next((each for each in (hint, *get_args(hint)) if _is_annotated(each)), None)
        if bounded is not None:
            test = functools.partial(_is_inside, bounded.__metadata__, or_none)
            checks[field] = test, bounds_in_words(bounded) + (", or None" if or_none else "")
        elif get_origin(hint) is Literal:
            checks[field] = get_args(hint).__contains__, kind_in_words(hint)
    return checks


def _is_annotated(kind: Any) -> bool:
    return get_origin(kind) is Annotated


def _is_inside(bounds: tuple[Any, ...], or_none: bool, value: Any) -> bool:
    if value is None and or_none:
        return True
    if isinstance(value, float) and not math.isfinite(value):
        return False
    limits = [bound for bound in bounds if not isinstance(bound, str)]
    return all(_HOLDS[type(limit)](value, *dataclasses.astuple(limit)) for limit in limits)


def bounds_in_words(kind: Any) -> str:
    """The bounds of an `Annotated` type: `1 or more`, `above 0 and at most 1`."""
    number, *bounds = get_args(kind)
    notes = [bound for bound in bounds if isinstance(bound, str)]
    match [bound for bound in bounds if not isinstance(bound, str)]:
        case [Ge(least), Le(most)]:
            words = f"{least:,} to {most:,}"
        case [Gt(least), Lt(most)]:
            words = f"between {least:,} and {most:,}"
        case [Gt(least), Le(most)]:
            words = f"above {least:,} and at most {most:,}"
        case [Ge(least), Lt(most)]:
            words = f"at least {least:,} and below {most:,}"
        case [Ge(least)]:
            words = f"{least:,} or more"
        case [Gt(least)]:
            words = f"above {least:,}"
        case _:
            raise AssertionError(kind)
    if number is float and len(bounds) - len(notes) == 1:
        words += ", and finite"
    return " ".join((words, *(f"({note})" for note in notes)))


def plain(value: Any) -> Any:
    """A tree of settings with Python's values for NumPy's, as `np.logspace` gives them. The code
    that reads and records settings takes no others.
    """
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def find(kind: type, name: str) -> list[SettingsGroup]:
    """The settings that a name means: a group with the groups in it, or the settings of that name,
    with or without their group's. An empty name means all groups.

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
    """A guess at the meaning of a name that no setting has, as the end of a message."""
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
    """A type in words: `a whole number, or None`, `one of auto, plain`, `whole numbers`."""
    simple = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "None",
    }
    if _is_annotated(kind):
        return f"{simple[get_args(kind)[0]]}, {bounds_in_words(kind)}"
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
    """The values that a setting takes and its default: `a whole number; default 150`."""
    has_default = setting.default is not REQUIRED
    default = f"default {value_in_words(setting.default)}" if has_default else "no default"
    return f"{kind_in_words(setting.kind)}; {default}"


def value_in_words(value: Any) -> str:
    """A value as `--set` takes it: `true`, `None`, `2,4`. `()` = an empty list."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return ",".join(map(value_in_words, value)) if value else "()"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
