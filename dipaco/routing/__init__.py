"""Routing: which path a document belongs to, decided from its first tokens.

The room turns hidden states into one *feature* vector per document (`features`), normalises them
(`normalise`), groups documents by k-means (`kmeans`) or by k-means on each part of the vector
(`product`), and bounds the documents of a path by prices (`capacity`). `shard_sizes` names shards
outside their bounds. The result is a `Router` (`router`): a small value with a version, saved and
loaded as bytes, that assigns one document or a million with the same answers.

A second kind of router is a classifier (`discriminative`) of the path that predicts a document best
(`labels`), with a bias that gives every path its share (`calibration`). `token_router` chooses the
path again within a document. `drawn` is no routing at all: documents are dealt out at random. The
paths themselves may choose, by the likelihood of a document's first tokens among the best paths of
a router (`likelihood`), and so may small models that share the documents out (`balanced_em`). A
user may pass a router (`own_router`).

Nouns: *feature* (one float vector a document), *centre*, *cost* (squared distance of a document to
a path), *price* (added to every cost of a path, to bound its documents), *score*
(minus cost minus price, the highest wins), *label* (the path that predicts a document best),
*target share* (the share of the documents meant for each path).

The room does not know the model: hidden states come in as a function. It imports `errors` and
`data.splitmix` only. Fitting runs on JAX, and a fitted router needs NumPy alone.

Follows DiPaCo (arXiv 2403.10616) section 2.4: generative routing by k-means and product k-means
over the mean hidden state of the first 32 tokens, and discriminative routing. The capacity bound
follows SmallTalk LM (arXiv 2410.03529), with prices in place of its one-shot assignment, because a
price also routes a document that comes alone.
"""
