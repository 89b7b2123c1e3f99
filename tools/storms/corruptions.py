"""Wrong contributions that a worker can be made to record, and what `status` must say of each: one
of these, according to the codec.
"""

CORRUPTIONS = {
    "NaN": ("holds a NaN or an infinity", "infinite or not a number"),
    "infinity": ("holds a NaN or an infinity", "infinite or not a number"),
    "wrong shape": ("expected float32", "has scales"),
    "wrong type": ("expected float32", "expected int8 with scales of float32"),
    "other run's": ("started from other parameters",),
    "stale": ("started from other parameters",),
}
TWICE = "recorded twice"  # refused on the spot: there is nothing to make again
