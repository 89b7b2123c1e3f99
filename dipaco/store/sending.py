"""Sends an object that is a folder, and that this machine alone has, to the run's bucket.

The files one after another, so that a sender that must end has one request under way and no threads
to wait for; their list last, which makes the folder count. After an interruption it goes on with
the files that are not there yet, and reads those that are: they must be these.
"""

from collections.abc import Callable

import xxhash

from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.fetch_lock import fetch_lock
from dipaco.store.objects import Objects
from dipaco.store.verification import DIGESTS, UNSENT, parse_listing

LOCK_SECONDS = 600.0  # the longest wait for another process that sends the same folder


def send_folder(
    objects: Objects, name: str, is_in_vain: Callable[[], bool] = lambda: False
) -> bool:
    """Returns whether the folder was sent: False if the bucket has it already. One process of this
    machine sends it, the others wait.

    Args:
      objects: of a run in a bucket.
      name: of the folder.
      is_in_vain: asked before each file: whether to leave it half sent, as if it were sent.

    Raises:
      ObjectMissing, ObjectDamaged: it is not here, or not as it was written. Its list is not sent.
      StoreUnreachable, StoreRefuses.
    """
    folder, remote = objects.place_of(name), objects.remote
    assert remote is not None
    with fetch_lock(objects.root, name, "send", LOCK_SECONDS):
        try:
            listing = (folder / DIGESTS).read_bytes()
            if remote.read(f"{name}/{DIGESTS}") == listing:
                (folder / UNSENT).unlink(missing_ok=True)
                return False
            there = set(remote.names(name))
            for file, digest, num_bytes in parse_listing(listing, folder, name):
                if is_in_vain():
                    return True
                place = f"{name}/{file}"
                if place in there and remote.has(place, num_bytes, digest):
                    continue
                content = (folder / file).read_bytes()
                if xxhash.xxh3_128_hexdigest(content) != digest:
                    problem = f"`{file}` is not as it was written"
                    raise ObjectDamaged(file=folder, name=name, problem=problem)
                remote.write(place, content)
        except FileNotFoundError as error:
            raise ObjectMissing(file=folder, name=name) from error
        remote.write(f"{name}/{DIGESTS}", listing)
        (folder / UNSENT).unlink(missing_ok=True)
    return True
