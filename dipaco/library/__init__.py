"""Runs from Python, as `import dipaco` gives them: to train one, and to read its results.

    opened.py      `dipaco.open`: a run's report, release, modules, text and perplexity
    training.py    `dipaco.run`: the work of `dipaco train`, in this process
    arguments.py   checks of the arguments
    report.py      the report as records, as a table, as a data frame; its picture
    console.py     the output of a training run: a bar, and a line for every event

The room is thin. It calls the same functions of the rooms below as the command line does. May
import every room but `cli` and `sweeps`.
"""
