"""From a request to its tokens: continuous batching over paths, on one device.

    stream.py            a request, its tokens, its end
    limits.py            how much a loop holds at once
    waiting_requests.py  the order in which requests get rows: clients take turns, then paths
    fairness.py          what each client may have
    request_queue.py     requests on their way into a loop
    loop.py              requests join and leave between blocks of steps
    meter.py             counts and rates of a loop
    device_health.py     whether the device still makes tokens
    batch.py             the active rows of a path
    block_plan.py        how many tokens each row makes in a block
    mixing.py            which paths share a step
    tiles.py             the tiles of such a step
    step_times.py        how long a block of each shape takes, measured at the start
    cached_texts.py      what each row of the cache holds
    cache_pool.py        the cache of all requests, and the programs in fixed shapes
    decode.py            the compiled programs: prefill, decode a block, score a prompt
    grammar.py           which tokens may come next, where a schema says so
    multiples.py         how large the `multipleOf` of a schema may be
    sampling.py          the next token from its logits
    generate.py          one prompt on one path, without a server

Nothing here knows runs, releases or HTTP. May import `model`, and `serving.errors`.
"""
