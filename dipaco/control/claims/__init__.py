"""Claims on tasks, and the ends of attempts.

queue.py             claims: leases, fencing tokens, backups of overdue tasks
silent_workers.py    ends the claims of workers that have fallen silent
failures.py          attempts that went wrong: counted, delayed, given up
assigned_workers.py  the worker that a path's next phase is left to
history.py           what happened, in order
"""
