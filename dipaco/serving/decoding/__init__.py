"""Decoding: from a request to its tokens, by continuous batching over paths on one device.

    request_queue.py     a request, its stream of tokens, which client's is next, and which pauses
    loop.py              requests join and leave between blocks of steps
    device_health.py     whether the device still makes tokens
    batch.py             the active rows of a path, and the arguments of their block of steps
    mixing.py            which paths share a step, in which tiles of which modules
    cache_pool.py        the cache of all requests, and the programs in fixed shapes
    decode.py            the compiled programs: prefill, decode a block, score a prompt
    grammar.py           which tokens may come next, where a schema says so
    grammar_trial.py     a schema is tried in a child process, which may be ended
    sampling.py          the next token from its logits

Nothing here knows runs, releases or HTTP. It may import `model`, and from `serving` the errors,
`fairness` and `warm_up`.
"""
