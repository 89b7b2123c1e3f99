"""The source of a rule's module: its digest, and whether it is what this process has loaded.

Python keeps what it has imported when the file is edited afterwards, as happens in a notebook: the
digest would then be of a rule that does not run.
"""

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from types import CodeType, ModuleType

import xxhash


def source_of(module: ModuleType) -> str:
    """The text of its file as it is now. Raises `OSError`, `TypeError` where there is none."""
    return inspect.getsource(module)


def digest_of(source: str) -> str:
    """32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(source.encode())


def is_loaded(module: ModuleType, source: str) -> bool:
    """True if a module's functions, and its constants that are numbers, words or tuples, agree with
    its source.
    """
    there = vars(module)
    codes = set(_codes(compile(source, str(module.__file__), "exec", dont_inherit=True)))
    loaded = (value.__code__ for value in there.values() if inspect.isfunction(value))
    if any(code not in codes for code in loaded if code.co_filename == module.__file__):
        return False
    return all(name in there and there[name] == value for name, value in _constants(source))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions, wherever they are defined."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _constants(source: str) -> Iterator[tuple[str, object]]:
    """Names at the top level that are given a value once, and the value."""
    tree = ast.parse(source)
    stored = Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            continue  # it is computed
        if stored[node.targets[0].id] == 1 and isinstance(value, int | float | str | tuple):
            yield node.targets[0].id, value
