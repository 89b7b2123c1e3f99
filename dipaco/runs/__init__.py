"""A run, opened: its config, facts, bytes, corpus and compiled programs side by side, for whoever
works on it or reads it.

`run` opens and begins run folders, `programs` holds what is compiled, `routing` sends documents to
paths. Workers do tasks on a `Run`; serving, evaluation and export read a release out of it. May
import everything below `config`, and `config`.
"""
