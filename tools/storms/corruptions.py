"""Wrong contributions that a worker can be made to record, and what `status` must say of each."""

_NOT_FINITE = ("holds a NaN or an infinity", "its checksum is not that of its values")
_OTHER_BASE = ("started from other parameters",)
CORRUPTIONS = {  # one of these is what `status` says; a codec may have a checksum
    "NaN": _NOT_FINITE,
    "infinity": _NOT_FINITE,
    "wrong shape": ("expected float32",),
    "wrong type": ("expected float32",),
    "other run's": _OTHER_BASE,
    "stale": _OTHER_BASE,
}
TWICE = "recorded twice"  # refused on the spot: there is nothing to make again
