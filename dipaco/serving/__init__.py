"""Serving: from a prompt to text, one path of the model at a time.

A prompt is routed once (DiPaCo, arXiv 2403.10616, section 2.4), so serving needs one path in memory
for each request and never the whole model. Re-routing chooses the path again every W tokens.

    decoding/          from a request to its tokens: the loop, the cache, the compiled programs
    dispatch.py        which path takes a prompt, and why: also in an event loop
    prefix_scores.py   how likely a path finds the first tokens of a prompt
    fairness.py        what clients share: one fair queue, places, and threads
    rerouting.py       which path continues after every W tokens, by the router trained for it
    models.py          the arms of the run as models of one server, and their releases
    release_follower.py  a thread that looks for newer ones
    path_cache.py      paths on the device, least recently used out first
    path_admission.py  waiting, in an event loop, until a path is read into memory
    warm_up.py         compiling at the start, program by program
    memory.py          one budget for rows, paths and their copies
    engine.py          a path cache and a loop of this process
    upstreams.py       other servers that answer for the paths, as a file lists them
    service.py         one run with its tokenizer, router, releases and engine
    continuation.py    a text continued without a server
    text.py            tokens to text: whole characters, stop strings, offsets
    http/              the service over HTTP

May import everything below. It does not import `workers`.
"""
