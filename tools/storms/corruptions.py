"""Wrong contributions that a worker can be made to record, and what `status` must say of each: one
of these, according to the codec.
"""

_NOT_FINITE = (
    "holds a NaN or an infinity",
    "infinite or not a number",
    "its checksum is not that of its values",
)
_OTHER_BASE = ("started from other parameters",)
CORRUPTIONS = {
    "NaN": _NOT_FINITE,
    "infinity": _NOT_FINITE,
    "wrong shape": ("expected float32", "has scales"),
    "wrong type": ("expected float32", "expected int8 with scales of float32"),
    "other run's": _OTHER_BASE,
    "stale": _OTHER_BASE,
}
TWICE = "recorded twice"  # refused on the spot: there is nothing to make again
