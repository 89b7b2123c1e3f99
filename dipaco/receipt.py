"""`Receipt`: what a store gives for bytes that are durable, and what a ledger remembers of them."""

from typing import NamedTuple


class Receipt(NamedTuple):
    """An object's name in the store, its digest (xxh3, 32 hexadecimal digits) and its size."""

    name: str
    digest: str
    num_bytes: int
