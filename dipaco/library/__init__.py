"""Runs from Python, as `import dipaco` gives them: to train one, and to read its results.

    opened.py      `dipaco.open`: a run's report, release, modules, text; a sweep's table
    training.py    `dipaco.run`: the work of `dipaco train`, in this process
    arguments.py   checks of the arguments
    report.py      a table as records, as text, as a data frame; pictures
    console.py     the output of a training run: a bar, and a line for every event

The room is thin. It calls the same functions of the rooms below as the command line does. May
import every room but `cli` and `sweeps`.
"""
