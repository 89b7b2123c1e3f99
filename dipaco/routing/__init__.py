"""Routing: which path a document belongs to, decided from its first tokens.

The room turns hidden states into one *feature* vector a document (`features`), puts features on a
common footing (`normalise`), groups documents by k-means (`kmeans`) or by k-means on each part of
the vector (`product`), and bounds how many documents a path may get by putting a price on the
crowded ones (`capacity`). What comes out is a `Router` (`router`): a small value with a version,
saved and loaded as bytes, that scores and assigns documents one at a time or a million at a time
with the same answer.

A second kind of router is a classifier (`discriminative`), fitted to which path predicts a document
best (`labels`), with a bias that gives every path its share (`calibration`).

Nouns: *feature* (one float vector a document), *centre*, *cost* (squared distance of a document to
a path), *price* (what a path adds to every cost, so that few enough documents choose it), *score*
(minus cost minus price; the highest wins), *label* (the path that predicts a document best),
*target share* (of the documents, for each path).

The room does not know the model: hidden states come in as a function. Imports `errors` only;
fitting runs on JAX, a fitted router needs NumPy alone.

Follows DiPaCo (arXiv 2403.10616) section 2.4: generative routing by k-means and product k-means
over the mean hidden state of the first 32 tokens, and discriminative routing. The capacity bound
follows SmallTalk LM (arXiv 2410.03529), with prices in place of its one-shot assignment, because a
price also routes a document that comes alone.
"""
