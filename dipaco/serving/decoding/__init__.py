"""Decoding: from a request to its tokens, by continuous batching over paths on one device.

    stream.py            a request, its tokens, its end, and a bridge into an event loop
    limits.py            how much a loop holds at once
    request_queue.py     requests on their way into a loop, and the order in which they get rows
    row_shares.py        which client gives a row up for another
    loop.py              requests join and leave between blocks of steps
    meter.py             counts and rates of a loop
    device_health.py     whether the device still makes tokens
    batch.py             the active rows of a path
    batch_row.py         one active request
    block_inputs.py      how many tokens each row makes in a block, and the block's arguments
    mixing.py            which paths share a step
    tiles.py             the tiles of such a step
    module_stacks.py     modules of a level side by side on the device
    step_times.py        an estimate of how long a block of each shape takes
    cache_pool.py        the cache of all requests, and the programs in fixed shapes
    decode.py            the compiled programs: prefill, decode a block, score a prompt
    grammar.py           which tokens may come next, where a schema says so
    grammar_trial.py     a schema is tried in a child process, which may be ended
    token_ids.py         which ids of a model are tokens
    sampling.py          the next token from its logits
    generate.py          one prompt on one path, without a server

Nothing here knows runs, releases or HTTP. It may import `model`, and from `serving` the errors,
`fairness` and `warm_up`.
"""
