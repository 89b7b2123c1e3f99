"""Observing a run: its events, for people and for files.

Nouns: *event* (one fact with its fields), *writer* (a destination of events: a terminal, JSON
lines), *tracker* (a writer of numbers: TensorBoard, trackio, Weights & Biases), *progress* (how far
a stage is, how fast, and how long it still takes), *metrics* (numbers for Prometheus).

This room decides nothing. A run without it computes the same numbers.
Clocks and streams come in as arguments. Imports `control`, `config` and `errors`.

DiPaCo (arXiv 2403.10616) section 3: facts are rows that any process may read while the run goes on.
"""
