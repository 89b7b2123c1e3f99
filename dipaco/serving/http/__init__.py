"""The serving loop over HTTP, as existing clients speak it: OpenAI's completions, and a page.

    protocol.py       what comes in and goes out, as types; also the published OpenAPI document's
    refusals.py       every error as OpenAI writes it: {"error": {message, type, param, code}}
    bodies.py         bytes of a body -> a request, or a sentence that says what is wrong with it
    chat.py           messages -> a prompt, by the tokenizer's template
    asking.py         a request -> prompts with their paths, and what is wanted of them
    admission.py      how many may wait; waiting until a path is in memory
    writer.py         tokens of one choice -> text, up to a stop string, with logprobs
    answer.py         one request while it is answered: its choices and what happens to them
    shapes.py         how an answer is written: a completion or a chat, whole or as a stream
    delivery.py       sending it, to a client that may leave
    metrics.py        Prometheus
    openapi.py        the published document
    app.py            the routes
    server.py         a socket, signals, draining
    index.html        the page

A thin skin: nothing here computes. Needs the extra `serve`.
"""
