"""Observing: what happens in a run, told to people and to files.

Nouns: *event* (one fact with its fields), *writer* (where events go: a terminal, JSON lines,
TensorBoard), *progress* (how far a stage is, how fast, and how long it still takes), *metrics*
(numbers for Prometheus). Nothing here decides anything; a run without it computes the same numbers.
Clocks and streams come in as arguments. Imports `errors`, and reads the ledger.

Follows DiPaCo (arXiv 2403.10616) section 3 in spirit: rows of facts that anyone may read while the
run goes on.
"""
