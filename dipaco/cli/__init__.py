"""The command line: one file per verb. Imports are done inside the verb, so that `--help`
answers at once.
"""
