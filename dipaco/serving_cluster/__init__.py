"""Serving by several processes: replicas of the serving loop on Ray, behind one front end.

The front end is one `dipaco serve` process: HTTP, tokenizer, router and releases. A replica has the
path cache and the loop, on a device of its own, and knows no release: each request names the
modules of its path.

    replica.py       an engine in a process of its own, and what it sends back
    remote_loop.py   the front end's loop: forwards requests, and moves them if a replica is lost
    remote_cache.py  its path store, which holds nothing: what replicas report of theirs
    path_router.py   which replica takes a request: the one that its path belongs to, or the next
    ray_replicas.py  replicas as a Ray Serve deployment, autoscaled

May import `serving`, `launch` and below; Ray is imported here and in `launch` only.
"""
