"""From a prompt to text: one path, its cache, one token at a time.

    dispatch.py  which path takes a prompt, and why
    sampling.py  which token follows, given its logits: greedy, temperature, top-k, top-p
    decode.py    prefill, step, and the stream of tokens they make

A prompt is routed once (DiPaCo, arXiv 2403.10616, section 2.4), so serving needs one path of the
model at a time and never the whole. May import: everything below; not `workers`.
"""
