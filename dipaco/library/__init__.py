"""Runs from Python, as `import dipaco` gives them: to train one, and to read what it has made.

    opened.py      `dipaco.open`: a run's report, release, modules, text and perplexity
    training.py    `dipaco.run`: what `dipaco train` does, in this process
    arguments.py   what is given to them, checked
    report.py      the report as records, as a table, as a data frame
    picture.py     a picture that a notebook shows
    console.py     what a training run prints: a bar, and a line for every event

The room is thin: what it gives is computed by the rooms below, by the functions that the verbs of
the command line call. May import every room but `cli`, `sweeps` and `serving_cluster`.
"""
