"""The needs of a run, computed from its config before anything starts (`dipaco plan`).

memory.py      bytes of memory of a worker
traffic.py     bytes that a machine receives and sends in a phase, and bytes that a run keeps
step_time.py   seconds of an inner step, measured on this machine
forecast.py    all of these as one value, and hours by one formula
"""
