"""The house stays a house: rooms import strictly lower storeys, and the heavy libraries stay where
they belong. `STOREYS` is the map of the front page.
"""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dipaco
from tests.support.failures import failures

HOUSE = Path(dipaco.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))

STOREYS = (
    {"errors"},
    {
        "files",
        "trees",
        "receipt",
        "caches",
        "stopping",
        "shipped",
        "settings",
        "plural",
        "processors",
    },
    {"topology", "model", "data"},
    {"routing", "inner", "outer", "schedule"},
    {"store", "control"},
    {"config"},
    {"algorithm", "evaluation", "observe", "overrides"},
    {"runs"},
    {"workers", "serving", "swarm"},
    {"launch", "dashboard"},
    {"sweeps", "library"},
    {"cli"},
)
STOREY_OF = {room: number for number, rooms in enumerate(STOREYS) for room in rooms}

HOMES = {  # library: the only places that may import it
    "flax": {"model"},
    "optax": {"routing", "inner", "outer", "runs"},
    "orbax": {"store"},
    "grain": {"data"},
    "array_record": {"data"},
    "tokenizers": {"data"},
    "sqlite3": {"control"},
    "psycopg": {"control"},
    "tensorstore": {"store"},
    "matplotlib": {"evaluation", "sweeps"},
    "ray": {"launch"},
    "cryptography": {"swarm"},
    "torch": set(),
    "transformers": set(),
}


def room_of(file: Path) -> str:
    """The room, or single file, that a file belongs to: `topology`, `trees`; nothing for dipaco."""
    name = file.relative_to(HOUSE).parts[0].removesuffix(".py")
    return "" if name == "__init__" else name


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@functools.cache
def imports(file: Path, *, for_types: bool = True) -> tuple[str, ...]:
    """Full names that a file imports, inside functions too; `for_types` = also under
    `if TYPE_CHECKING`.
    """
    return tuple(_imports(file, for_types=for_types))


def _imports(file: Path, *, for_types: bool) -> Iterator[str]:
    tree = tree_of(file)
    for node in ast.walk(tree) if for_types else _that_run(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively: write the whole name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _that_run(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from _that_run(node)


def rooms_imported(file: Path, *, for_types: bool = True) -> set[str]:
    names = [name.split(".") for name in imports(file, for_types=for_types)]
    return {name[1] for name in names if name[0] == "dipaco" and len(name) > 1}


def test_the_map_of_the_front_page_shows_these_storeys():
    """Lines of a code block: number, rooms, and after a `#` what they do; the highest first."""
    page = (HOUSE.parent / "README.md").read_text()
    lines = re.findall(r"^(?:    )? ?(\d+)  (\w[^#\n]*)", page, re.MULTILINE)
    shown = [(int(number), set(rooms.split())) for number, rooms in lines]
    assert shown == list(enumerate(STOREYS))[::-1]


def test_every_room_of_the_storeys_is_there():
    assert {room_of(file) for file in FILES} - {""} == STOREY_OF.keys()


def test_a_file_opens_with_its_subject_and_imports_strictly_lower_storeys():
    def check(file):
        assert ast.get_docstring(tree_of(file)), "say in the first line what it is about"
        room = room_of(file)
        if room == "":
            assert rooms_imported(file, for_types=False) == set(), "`import dipaco` answers at once"
            return
        assert room in STOREY_OF, f"give `{room}` its storey in the table above"
        for other in rooms_imported(file) - {room}:
            assert STOREY_OF[other] < STOREY_OF[room], f"{room} must not know {other}"

    assert len(FILES) > 300
    assert failures(check, FILES) == {}


def test_the_files_that_a_room_says_it_has_are_there():
    for file in HOUSE.rglob("__init__.py"):
        folders = (file.parent, HOUSE, HOUSE.parent)
        said = ast.get_docstring(tree_of(file)) or ""
        for name in re.findall(r"[\w/]+\.py\b", said):
            assert any((folder / name).is_file() for folder in folders), f"{file}: {name}"


@functools.cache
def import_graph(*, for_types: bool) -> dict[str, set[str]]:
    """File -> files that it imports, inside functions too. Left out is `dipaco/__init__.py`, which
    names the whole library and loads none of it.
    """
    names = {".".join(file.relative_to(HOUSE.parent).with_suffix("").parts): file for file in FILES}
    names = {name.removesuffix(".__init__"): file for name, file in names.items()}
    del names["dipaco"]

    def targets(file: Path) -> Iterator[str]:
        for full_name in imports(file, for_types=for_types):
            # `from dipaco.topology import Level` is the room, `from dipaco import trees` a file.
            yield full_name if full_name in names else full_name.rpartition(".")[0]

    return {
        name: {target for target in targets(file) if target in names and target != name}
        for name, file in names.items()
    }


@pytest.mark.parametrize("for_types", [False, True])
def test_no_files_import_each_other_in_a_circle_lazily_included(for_types):
    graphlib.TopologicalSorter(import_graph(for_types=for_types)).prepare()


@pytest.mark.parametrize("room", ["control", "runs"])
def test_no_folders_of_a_room_import_each_other_in_a_circle(room):
    """A file beside the folders counts as a folder of its own."""

    def folder_of(name: str) -> str:
        return ".".join(name.split(".")[:3])

    graph: dict[str, set[str]] = {}
    for name, targets in import_graph(for_types=True).items():
        if name.startswith(f"dipaco.{room}."):
            inside = {folder_of(at) for at in targets if at.startswith(f"dipaco.{room}.")}
            graph.setdefault(folder_of(name), set()).update(inside - {folder_of(name)})
    assert len(graph) > 3
    graphlib.TopologicalSorter(graph).prepare()


def test_a_library_is_imported_in_its_own_rooms_only():
    libraries = {file: {name.split(".")[0] for name in imports(file)} for file in FILES}
    for library, homes in HOMES.items():
        assert {room_of(file) for file in FILES if library in libraries[file]} <= homes, library


def test_sql_is_in_sql_files_only():
    statement = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER)\s", re.DOTALL)
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not statement.match(node.value), f"{file.name}:{node.lineno}: {node.value}"


def modules_after(code: str) -> set[str]:
    """Top-level names of what is loaded in a new process after `code`."""
    report = "; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "numpy", "grain", "pyarrow", "matplotlib"}


@pytest.mark.parametrize("room", ["topology", "control"])
def test_rooms_of_pure_python_load_no_jax_and_no_numpy_whatever_they_import(room):
    names = [
        ".".join(file.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__")
        for file in sorted((HOUSE / room).rglob("*.py"))
    ]
    assert len(names) > 3
    assert not modules_after(f"import {', '.join(names)}") & HEAVY


def test_asking_for_help_or_a_config_loads_nothing_heavy():
    quickstart = HOUSE.parent / "configs" / "quickstart.py"
    code = (
        "import dipaco; dir(dipaco); dipaco.load_config; "
        "import dipaco.config, dipaco.overrides, dipaco.cli.main; "
        "from dipaco.cli.main import main, parser; parser().format_help(); "
        f"main(['config', 'show', {str(quickstart)!r}])"
    )
    assert not modules_after(code) & HEAVY


@pytest.mark.parametrize(
    "words", ["--help", "--version", "train --help", "train toy --set x=1 --run /nowhere"]
)
def test_the_command_line_answers_without_jax(words):
    code = (
        "import sys, atexit; "
        "atexit.register(lambda: print('LOADED', *sys.modules)); "
        f"from dipaco.cli.main import main; main({words.split()!r})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    said, _, loaded = done.stdout.partition("LOADED")
    assert "dipaco" in said
    assert not {name.split(".")[0] for name in loaded.split()} & HEAVY


def test_a_class_name_means_one_thing_in_the_whole_house():
    homes: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(file.relative_to(HOUSE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
