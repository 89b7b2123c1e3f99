"""Retention of a run's objects and records.

retention.py  which objects no fact needs any more
cleaning.py   a finished run gives up what it would go on from
rollback.py   a run is at an earlier phase again
"""
