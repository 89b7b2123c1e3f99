"""Where bytes, facts and mathematics meet: the tasks of a run, done one by one.

`loop` claims a task, has it done and records its facts, while `renewer` renews its lease; `stages`,
`trainer`, `executor`, `evaluator` and `rerouter` each do some kinds of task; `mending` has what was
lost made again; `monitor` tells who fell silent. All work is deterministic: a task done twice gives
the same bytes, and its facts count once. One process that runs until idle is the laptop; the same
tasks are the cluster. The only room that may know both `store` and `inner`/`outer`. DiPaCo (arXiv
2403.10616) section 3.
"""
