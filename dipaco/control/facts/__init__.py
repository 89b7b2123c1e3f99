"""The facts of a run: written together with the tasks that they make due, and read.

commit.py       finishing a task: its facts, and the tasks that follow, in one transaction
recording.py    how each kind of fact is written, and which locks that needs
facts.py        reading facts, and the scheduler's frontier
quorums.py      outer steps that need not wait for every path
redos.py        tasks done again because their result is lost
reproducing.py  which facts of a task done again stand
progress.py     how far a run is
"""
