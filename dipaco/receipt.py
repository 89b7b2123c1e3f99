"""`Receipt`: a store returns it for durable bytes, and the ledger records it."""

from typing import NamedTuple


class Receipt(NamedTuple):
    """An object's name in the store, its digest (xxh3, 32 hexadecimal digits) and its size."""

    name: str
    digest: str
    num_bytes: int
