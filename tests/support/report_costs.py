"""What a `ReportRow` says that cost next to nothing, and its bits."""

COSTS = {
    "bits_per_byte": 1.5,
    "parameters_per_path": 1,
    "parameters_total": 1,
    "tokens": 1,
    "flops": 1.0,
    "bytes_per_machine": 0,
    "seconds": 1.0,
    "machine_seconds": 1.0,
    "link_seconds": {"20": 1.0},
}
