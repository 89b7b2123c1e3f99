"""What bytes should be, and whether they are: a file against its receipt, a folder against the list
of its files that lies in it.
"""

import json
from pathlib import Path

from dipaco.data.files import file_digest
from dipaco.errors import ObjectDamaged, ObjectMissing
from dipaco.receipt import Receipt

DIGESTS = "digests.json"  # the list of a folder's files: [name, digest, bytes] of each


def check_file(file: Path, receipt: Receipt) -> None:
    """Reads every byte of a file. Raises `ObjectMissing`, `ObjectDamaged`."""
    name, digest, num_bytes = receipt
    try:
        size = file.stat().st_size
        if size != num_bytes:
            problem = f"{size} bytes instead of {num_bytes}"
            raise ObjectDamaged(file=file, name=name, problem=problem)
        found = file_digest(file)
    except FileNotFoundError as error:
        raise ObjectMissing(file=file, name=name) from error
    if found != digest:
        problem = f"its digest is {found} instead of {digest}"
        raise ObjectDamaged(file=file, name=name, problem=problem)


def check_folder(folder: Path, name: str) -> None:
    """Reads every byte of the folder that goes by `name`. Raises `ObjectDamaged`."""
    try:
        content = (folder / DIGESTS).read_bytes()
    except OSError as error:
        raise ObjectDamaged(file=folder, name=name, problem=f"`{DIGESTS}`: {error}") from error
    for file, digest, num_bytes in listed(content, folder, name):
        try:
            check_file(folder / file, Receipt(name, digest, num_bytes))
        except ObjectMissing as error:
            raise ObjectDamaged(file=folder, name=name, problem=f"`{file}` is missing") from error
        except ObjectDamaged as error:
            problem = f"`{file}`: {error.values['problem']}"
            raise ObjectDamaged(file=folder, name=name, problem=problem) from error


def listed(content: bytes, folder: Path | str, name: str) -> list[Receipt]:
    """What the list of a folder lists. Raises `ObjectDamaged`."""
    try:
        files = [Receipt(str(file), str(digest), int(n)) for file, digest, n in json.loads(content)]
        if outside := [file for file, _, _ in files if ".." in file or file.startswith("/")]:
            raise ValueError(f"{outside[0]} is not in the folder")
    except (ValueError, TypeError) as error:
        raise ObjectDamaged(file=folder, name=name, problem=f"`{DIGESTS}`: {error}") from error
    return files


def list_folder(folder: Path) -> list[Receipt]:
    """A receipt for every file, by its name in the folder."""
    return [receipt_of(folder, file) for file in sorted(folder.rglob("*")) if file.is_file()]


def receipt_of(folder: Path, file: Path) -> Receipt:
    """For one of them."""
    name = file.relative_to(folder).as_posix()
    return Receipt(name, file_digest(file), file.stat().st_size)
