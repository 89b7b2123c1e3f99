"""Runs: the config, facts, bytes, corpus and compiled programs of one run, opened side by side.

`opening` begins, finds and opens runs, `folder_lock` keeps their folders to one setup at a time,
and `run` is a `Run`: what every task reads through. `programs` holds what is compiled to train,
`scoring_programs` what reads text, on `meshes` of the devices of a kind of `machine`; `routing`
sends documents to paths, `feature_cache` shares their features between runs, and `evaluate_texts`
scores any text. `rules` are what a user may pass in the place of the built-in outer step, router or
path loss. `status`, `inspection` and `progress` describe a run, `report` a finished one; `version`
tells programs apart, and `upgrade` moves a run to another.

Workers do tasks on a `Run`; serving, evaluation and export read a release out of it. May import
every room below, and nothing of workers, serving or swarm.
"""
