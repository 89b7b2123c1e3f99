"""The kinds of task, one file each; `train` is also `pretrain`, and `train_synchronous` a `train`
task of an arm whose paths step together.

Each is a function of a run and a claim that returns the facts to record; it writes objects, and
records nothing. `workers.execution.execute` has the table of kinds.
"""
