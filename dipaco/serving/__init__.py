"""From a prompt to text: one path of the model, its cache, a block of tokens at a time.

What a request is and how its tokens are made:

    dispatch.py    which path takes a prompt, and why
    rerouting.py   and which goes on after every W tokens, where the run trained a router for it
    stream.py      a request, its tokens, its end
    sampling.py    which token follows, given its logits
    decode.py      the compiled programs: read prompts, make a block of tokens
    pool.py        the cache of all requests, and those programs in fixed shapes
    batch.py       the rows of one path that are alive
    waiting.py     who is next
    limits.py      what a loop holds at once
    meter.py       what it has done
    loop.py        all of it, turn by turn: requests join and leave between blocks

A run that is served:

    releases.py    which release is served, and a newer one when there is
    path_cache.py  paths on the device, the least recently used out
    feed.py        tokens from the loop's thread into an event loop
    room.py        waiting until a path is there
    engine.py      paths and loop of this process, or what stands for them
    replica.py     an engine that others ask
    elsewhere.py   asking several, and what happens when one dies
    text.py        tokens to text, piece by piece
    service.py     one run with its tokenizer, router, releases and engine
    http/          the same over HTTP

A prompt is routed once (DiPaCo, arXiv 2403.10616, section 2.4), so serving needs one path of the
model at a time and never the whole. May import: everything below; not `workers`.
"""
