"""The bytes of a run: modules, contributions, snapshots, routers, shards.

Objects are written whole or not at all, never changed, named by their digest, and checked against
it on every read. So an effect may happen twice and count once: the second write finds the object
there. `layout` alone knows names on disk. A write returns a `Receipt`; an object counts only when a
row of the ledger holds its receipt. May import `trees`, `errors`, and the rooms of values; knows
nothing of tasks.
"""
