"""The nouns of a run, and which tasks a new fact makes due. Pure: no database.

tasks.py       tasks, claims and facts
scheduler.py   a new fact -> the tasks that it makes due
release.py     a consistent set of modules that goes out
summaries.py   what a finished stage says of what it made
"""
