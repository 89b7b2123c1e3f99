"""Decoding: from a request to its tokens, by continuous batching over paths on one device.

    limits.py            how much a loop holds at once
    request_queue.py     a request, its stream of tokens, and the order in which they get rows
    row_shares.py        which client gives a row up for another
    loop.py              requests join and leave between blocks of steps
    meter.py             counts and rates of a loop
    device_health.py     whether the device still makes tokens
    batch.py             the active rows of a path, and the arguments of their block of steps
    mixing.py            which paths share a step, in which tiles of which modules
    cache_pool.py        the cache of all requests, and the programs in fixed shapes
    decode.py            the compiled programs: prefill, decode a block, score a prompt
    grammar.py           which tokens may come next, where a schema says so
    grammar_trial.py     a schema is tried in a child process, which may be ended
    sampling.py          the next token from its logits
    generate.py          one prompt on one path, without a server

Nothing here knows runs, releases or HTTP. It may import `model`, and from `serving` the errors,
`fairness` and `warm_up`.
"""
