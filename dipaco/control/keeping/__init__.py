"""What of a run is kept.

retention.py  which objects no fact needs any more
cleaning.py   a finished run gives up what it would go on from
rollback.py   a run is at an earlier phase again
"""
