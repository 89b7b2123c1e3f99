"""Sweeps: named rows under several seeds, each a run, and one table and picture of all runs.

    trials.py       rows and seeds -> the runs of a sweep
    sweep.py        the whole: runs side by side, then the table
    jobs_left.py    the jobs that are left, and their order
    jobs.py         a pool of processes, each working on one run
    shared_base.py  text, tokens and base model, made once for all rows that agree on them
    folder.py       the sweep's folder: its lock, finished runs, rows that have changed
    progress.py     one progress bar for all runs
    table.py, text.py, plot.py    the table, as text, as a picture
    measured.py, kinds.py         rows of the table: kinds, and which may be compared
    pairing.py                    intervals over seeds
    notes.py                      sentences below the table

Nouns: *row* (a named config), *trial* (a row under one seed: one run), *job* (a trial, or a base
model that trials begin with). May import everything but `cli`.
"""
