"""The language model that every path is: a Llama-family decoder, held as named parts.

The model knows *parts* (`embed`, `block_00` ... `final_norm`, `head`) and nothing of levels,
modules or paths: `topology` decides which paths share which parts. Parameters are a mapping from
part name to a nested dict of arrays, so that a dict union joins the parts of several modules.

    config.py       sizes, counts of parameters and of floating point operations (no JAX)
    spec.py         parameters as descriptions: shape, dtype, logical axes, initial values
    layers.py       norm, rotary positions, feed-forward, and a `dense` that is fast on CPU
    kernels.py      which form of a computation the device runs
    attention.py    causal attention within segments, with and without a cache
    lm.py           parts -> logits, or hidden states for the router
    loss.py         next-token loss and log-likelihoods
    cache.py        keys and values of earlier tokens, for decoding
    inference.py    parts -> logits for serving: kernels and tokens as suits the machine
    sharding.py     logical axes -> mesh axes
    huggingface.py  checkpoints to and from `transformers`
    config_json.py  their config.json, read and checked

Letters at the end of a name are its axes:

    B  rows in the batch          D  d_model
    T  tokens in a row            F  d_ff
    S  tokens attended to, slots  H  query heads
    V  vocabulary                 G  key/value heads     R  query heads for each of them (H = G R)
                                  K  size of a head

The room imports `errors` and `trees`, and only this room imports Flax. Architecture: DiPaCo (arXiv
2403.10616) section 4 gives sizes only. This is Llama (arXiv 2302.13971) with grouped queries
(2305.13245) and optional QK-norm (2302.05442).
"""
