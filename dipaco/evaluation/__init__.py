"""Evaluation: how well documents are predicted, and the tables and pictures that say so.

Nouns: *score* (the summed log-likelihood of a document under a path, and how many tokens it
counts), *perplexity* (exp of minus their mean over tokens), *row* (one line of every results
table), *report* (rows and all that a reader of a run wants beside them).

Every perplexity here leaves out the first 32 tokens of a document, since the router has seen them
(DiPaCo, arXiv 2403.10616, section 4). The room imports `errors` only: the model comes in as a
function, routing as an array of path numbers.
"""
