"""Text in, batches out: documents, their splits, their tokens, and rows planned over them.

Follows DiPaCo (arXiv 2403.10616) section 2.4 (a shard per path, a reserve of documents for the
router) and section 4 (perplexity on documents cut to the context).

The nouns, in the order in which text meets them:

  source     where documents come from: `packages:`, `text:GLOB`, `parquet:GLOB`, `hf:NAME`, ...
  slice      a part of the sources that one task reads, and one makes tokens (`data.slices`)
  document   a piece of text with a domain and a group, which is never in two splits
  split      train, tune, test or router, by the hash of the group: the same whatever the run's seed
  corpus     a folder: the tokenizer, the tokens of every document once, flat arrays about them
  shard      the documents of one path: document numbers and a row plan, no text
  row        `length` tokens made of pieces (document, start, length), planned with the shard
  batch      tokens, segments and positions, [B, T] each, found by one integer, the step

Imports `errors`, `files`, `receipt` and `caches`. Heavy libraries (grain, array_record, pyarrow,
tokenizers, datasets) are imported inside the functions that need them.
"""
