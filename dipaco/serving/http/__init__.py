"""The service over HTTP: OpenAI's completions and chat, a page, health and metrics.

    protocol.py       requests and responses as types, the source of the OpenAPI document
    requests.py       a body -> a parsed request with prompts, or an error
    chat_template.py  messages -> a prompt, and the text that the router reads
    structured.py     `response_format` -> the schema that the answer obeys, compiled, or an error
    tokenizing.py     texts and token ids
    cards.py          what the server has: models, levels, paths; the page: index.html, page.css,
                      page.js, picture.js
    answer.py         places for choices, and one request while it is answered
    responses.py      an answer as a completion or a chat, sent whole or in chunks
    forward.py        what a router sends on to an upstream, and back
    errors.py         every error as OpenAI writes it: {"error": {message, type, param, code}}
    metrics.py        Prometheus, also under the names that dashboards for vLLM read
    openapi.py        the published document
    app.py            the routes
    server.py         a socket, its connections, signals, draining

Nothing here computes. It needs the extra `serve`, and may import the rest of `serving`.
"""
