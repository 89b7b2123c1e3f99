"""A cache folder like a separate machine's. Compiled programs are shared by all machines that are
folders of one machine.
"""

from pathlib import Path

from dipaco.caches import cache_folder


def isolated_cache(folder: Path) -> Path:
    """Makes it."""
    compiled = cache_folder() / "compiled"
    compiled.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    (folder / "compiled").symlink_to(compiled.absolute())
    return folder
