"""The configs that come with the program, by name: `quickstart`, `sharing`.

In a checkout they are the folder `configs` beside this package. A wheel has them inside it.
"""

import difflib
from pathlib import Path

_HOME = Path(__file__).parent


def folders() -> tuple[Path, ...]:
    """The folders of configs and of sweeps. Imports of a config are looked for there."""
    inside = _HOME / "configs"
    top = inside if inside.is_dir() else _HOME.parent / "configs"
    return (top, top / "ablations")


def shipped_files() -> dict[str, Path]:
    """Every config and sweep by its name, which is its file's."""
    files = [file for folder in folders() for file in sorted(folder.glob("*.py"))]
    return {file.stem: file for file in files}


def find_file(given: Path) -> Path | None:
    """The given file if it exists, else the shipped config by that name, else None."""
    return given if given.is_file() else shipped_files().get(str(given))


def names_like(given: Path) -> str:
    """The shipped names to offer for one that is not there, as a phrase."""
    names = sorted(shipped_files())
    close = difflib.get_close_matches(given.stem, names, n=1)
    return f"the nearest is `{close[0]}`" if close else f"shipped are {', '.join(names)}"
