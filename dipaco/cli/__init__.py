"""The command line: `dipaco VERB ...`.

One file for each verb, named like it (`roles.py` and `run_commands.py` hold several); `options.py`
has the options that verbs share, `interrupts.py` what Ctrl-C does, `main.py` finds the verb and
prints errors, and `start.py` is the command `dipaco`. Files here parse arguments and print results;
what a verb does lies in its room.

`--help` and typing errors answer without loading JAX, so heavy imports stand inside functions.
"""
