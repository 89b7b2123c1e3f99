"""The workers and volunteers of a run, and the commands that they follow.

members.py      the workers, and how much of their time counted
meta.py         values of the run: its command, desired workers, program version
swarms.py       volunteers: credentials, backbones, steps
leaderboard.py  what each volunteer has done
"""
