"""Evaluation: how well documents are predicted, and the tables and pictures of the results.

Nouns: *score* (the summed log-likelihood of a document under a path, and how many tokens it
counts), *perplexity* (exp of minus their mean over tokens), *row* (one line of every results
table), *report* (the rows of a run, its shards, curves and notes).

Every picture of the project has its colours from `style.py`, one for each arm. `plots.py` draws a
report and what `dipaco inspect` shows, and `sweeps/plot.py` draws a sweep.

Every perplexity leaves out the first 32 tokens of a document, which the router has seen (DiPaCo,
arXiv 2403.10616, section 4). The model comes in as a function, routing as an array of path numbers.
The room imports `errors` and names of `config`.
"""
