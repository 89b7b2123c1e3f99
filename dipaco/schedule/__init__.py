"""The schedule says who does what in which phase of a run. It holds values only: no
JAX, no files, no clocks.

    arm.py            one model that the run trains; each question about its phases
    plan.py           the arms of a run
    path_sampling.py  the draw of the paths that take part in a phase

`config/run_config.py` makes the plan of a config. A change of who takes part, of when a module
steps, or of what is late is a change of this room. Source: DiPaCo (arXiv 2403.10616), sections 2.4
and 3.
"""
