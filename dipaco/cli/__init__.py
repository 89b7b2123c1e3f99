"""The command line: `dipaco VERB ...`.

Each verb has a file of its name (`roles.py` and `run_commands.py` hold several). `options.py` has
the options that verbs share, and `interrupts.py` the handling of Ctrl-C. `main.py` finds the verb
and prints errors, and `start.py` is the command `dipaco`. Files here parse arguments and print
results, and the work of a verb is done by its room.

`--help` and typing errors answer without loading JAX, so heavy imports stand inside functions.
"""
