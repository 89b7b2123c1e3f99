"""Runs: the config, facts, bytes, corpus and compiled programs of one run, opened side by side.

`opening` begins, finds and opens runs, `folder_lock` keeps their folders to one setup at a time,
and `run` is a `Run`, through which every task reads. `programs` are compiled to train, and
`scoring_programs` to read text. Both run on `meshes` of the devices of one kind of `machine`.
`routing` sends documents to paths. `rules` are what a user may pass in the place of the built-in
outer step, router or path loss. `sent_snapshots` says which snapshots go to the bucket. `version`
tells programs apart, and `upgrade` moves a run to another.

    forecast/   what a run will need, before it starts
    reading/    what is read out of a run: status, report, inspection, releases

Workers do tasks on a `Run`. Serving, evaluation and export read a release out of it. May import
every room below, and nothing of workers, serving or swarm.
"""
