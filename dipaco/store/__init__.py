"""The bytes of a run: modules, contributions, snapshots, routers, shards.

    address.py    where a run is: a folder, or a URL
    layout.py     the only file that knows names on disk
    objects.py    whole objects: written once, verified on every read
    listing.py    whether bytes are what they should be
    remote.py     objects in a bucket, whatever the network does
    cache.py      what was fetched from buckets, bounded
    tensors.py    trees of arrays as objects
    snapshots.py  path snapshots, by Orbax

Objects are written whole or not at all, never changed, named by their digest, and checked against
it on every read. So an effect may happen twice and count once: the second write finds the object
there. A write returns a `Receipt`; an object counts only when a row of the ledger holds its
receipt. May import `trees`, `errors`, and the rooms of values; knows nothing of tasks.
"""
