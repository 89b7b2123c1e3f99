"""DiPaCo's Algorithm 1 in one process, and what every other way of running is compared with."""
