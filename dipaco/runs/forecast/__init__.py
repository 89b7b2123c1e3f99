"""The needs of a run, computed from its config before anything starts (`dipaco plan`).

memory.py      bytes of memory of a worker
traffic.py     bytes that a machine receives and sends in a phase, and bytes that a run keeps
step_time.py   seconds of an inner step, measured on this machine
devices.py     kinds of devices that a run can be planned for
compiled.py    memory, operations and bytes of a worker's programs, by the compiler
hlo.py         bytes that a compiled program moves
forecast.py    all of these as one value, and hours by one formula
"""
