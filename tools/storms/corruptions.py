"""Wrong contributions that a worker can be made to record, and what `status` must say of each."""

CORRUPTIONS = {
    "NaN": "holds a NaN or an infinity",
    "infinity": "holds a NaN or an infinity",
    "wrong shape": "expected float32",
    "wrong type": "expected float32",
    "other run's": "started from other parameters",
    "stale": "started from other parameters",
}
TWICE = "recorded twice"  # refused on the spot: there is nothing to make again
