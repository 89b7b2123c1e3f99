"""The tasks of a run, one file each: what a worker does once it has claimed one."""
