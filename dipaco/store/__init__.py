"""The bytes of a run: modules, contributions, snapshots, routers, shards.

    address.py       where a run is: a folder, or a URL
    layout.py        names on disk; no other file knows them
    objects.py       `Objects`: written once, verified on every read
    verification.py  files against receipts, folders against their lists
    remote.py        `Remote`: objects in a bucket, with retries
    cache.py         `FileCache`: files fetched from buckets, bounded
    tensors.py       trees of arrays as objects
    snapshots.py     path snapshots, by Orbax
    retention.py     how many phases are kept

Objects are written whole or not at all, never changed, named by their digest, and checked against
it on every read. So a write may be repeated: the second one finds the object there. A write returns
a `Receipt`. An object counts only when a row of the ledger holds its receipt. Imports `errors`,
`files`, `trees`, `receipt` and `caches`; knows nothing of tasks.
"""
