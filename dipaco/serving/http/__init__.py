"""The service over HTTP: OpenAI's completions and chat, a page, health and metrics.

    protocol.py       requests and responses as types, the source of the OpenAPI document
    bodies.py         the bytes of a body -> such a type, or an error
    requests.py       a body -> a parsed request with routed prompts, or an error
    chat_template.py  messages -> a prompt, and the text that the router reads
    structured.py     `response_format` -> the schema that the answer obeys, compiled, or an error
    tokenizing.py     texts and token ids
    cards.py          what the server has: models, levels, paths
    admission.py      how many choices may be open, and waiting until a path is in memory
    answer.py         one request while it is answered: its choices and their events
    responses.py      an answer as a completion or a chat, whole or in chunks
    streaming.py      sending it, to a client that may disconnect
    forward.py        what a router sends on to an upstream, and back
    errors.py         every error as OpenAI writes it: {"error": {message, type, param, code}}
    metrics.py        Prometheus
    vllm_metrics.py   the same under the names that dashboards for vLLM read
    openapi.py        the published document
    app.py            the routes
    server.py         a socket, signals, draining
    connection_limit.py  how many connections may be open, and which one goes
    page.py           the page: index.html, page.css, page.js, picture.js

Nothing here computes. It needs the extra `serve`, and may import the rest of `serving`.
"""
