"""The schedule says who does what in which phase of a run. It holds values only: no
JAX, no files, no clocks.

    arm.py            one model that the run trains; each question about its phases
    plan.py           the arms of a run
    path_sampling.py  the draw of the paths that take part in a phase

`config/run_config.py` makes the plan of a config. Who takes part in a phase, and how many
contributions a step needs, is decided here. When a step is due, and which contributions it takes,
follows in `control/planning/scheduler.py` and `control/facts/quorums.py`. Source: DiPaCo (arXiv
2403.10616), sections 2.4 and 3.
"""
