"""Completions over HTTP: the text is the path's own, whole or streamed, alone or in a batch."""

import re
import threading

import msgspec
import numpy as np
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.serving.http.answer import Answer
from dipaco.serving.http.protocol import CompletionRequest
from tests.support.serving_rig import completion, events_of, full_logits, route

GREEDY = {"model": "toy", "max_tokens": 12, "temperature": 0}


def ask(client, **body):
    return completion(client, GREEDY | body)


def streamed(client, **body):
    """The events of the stream of the same."""
    return events_of(client.post("/v1/completions", json=GREEDY | {"stream": True} | body))


def path_and_ids(service, prompt):
    """The path and token ids of a prompt."""
    (ids,) = service.tokenizer.encode([prompt])
    return route(service, service.releases.current, ids).path, ids


@pytest.fixture(scope="module")
def log_probabilities(service):
    """(path, ids) -> float32 [tokens, V] by the full forward, without cache or batch."""
    release = service.releases.current.release
    parts = {path: service.run.path_of(release, path) for path in range(len(release.paths))}

    def of(path, ids):
        logits = full_logits(service.model, parts[path], ids)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    return of


def test_greedy_text_is_that_of_the_path_alone(service, client, prompts, log_probabilities):
    paths = set()
    for prompt in prompts[:4]:
        path, ids = path_and_ids(service, prompt)
        all_ids = ids.tolist()
        for _ in range(12):
            all_ids.append(int(log_probabilities(path, all_ids)[-1].argmax()))
        answer = ask(client, prompt=prompt)
        (choice,) = answer["choices"]
        assert choice["text"] == service.tokenizer.decode(all_ids[len(ids) :])
        assert (choice["path"], choice["finish_reason"]) == (path, "length")
        assert answer["system_fingerprint"] == service.releases.current.digest
        assert answer["usage"] == {
            "prompt_tokens": len(ids),
            "completion_tokens": 12,
            "total_tokens": len(ids) + 12,
        }
        paths.add(path)
    assert len(paths) > 1, "the prompts should need several paths"


def test_a_stream_is_the_same_text_and_ends_with_the_usage(client, prompts):
    whole = ask(client, prompt=prompts[0])
    events = streamed(client, prompt=prompts[0], stream_options={"include_usage": True})
    *pieces, last = events
    assert "".join(e["choices"][0]["text"] for e in pieces) == whole["choices"][0]["text"]
    assert [e["choices"][0]["finish_reason"] for e in pieces][-1] == "length"
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert len({e["id"] for e in events}) == 1


def test_a_stream_says_the_usage_so_far_at_each_event_where_that_is_asked_for(client, prompts):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *pieces, last = streamed(client, prompt=prompts[0], stream_options=options)
    so_far = [event["usage"]["completion_tokens"] for event in pieces]
    assert so_far == sorted(so_far)
    assert so_far[0] > 0
    assert so_far[-1] == last["usage"]["completion_tokens"] == 12
    options["include_usage"] = False  # as vLLM, which says it at no event then
    events = streamed(client, prompt=prompts[0], stream_options=options)
    assert all(event.get("usage") is None for event in events)


def test_several_prompts_each_take_their_own_path_and_return_in_order(service, client, prompts):
    one_by_one = [ask(client, prompt=prompt)["choices"][0]["text"] for prompt in prompts]
    all_at_once = ask(client, prompt=prompts)
    assert [c["text"] for c in all_at_once["choices"]] == one_by_one
    assert [c["index"] for c in all_at_once["choices"]] == list(range(len(prompts)))
    assert [c["path"] for c in all_at_once["choices"]] == [
        path_and_ids(service, p)[0] for p in prompts
    ]
    texts = [""] * len(prompts)
    for event in streamed(client, prompt=prompts):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == one_by_one


def test_token_ids_are_a_valid_prompt(service, client, prompts):
    _, ids = path_and_ids(service, prompts[0])
    assert ask(client, prompt=ids.tolist())["choices"] == ask(client, prompt=prompts[0])["choices"]
    both = ask(client, prompt=[ids.tolist(), ids[:3].tolist()])
    assert len(both["choices"]) == 2


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_text_ends_before_a_stop_string_even_across_tokens(client, prompts, is_streamed):
    full = ask(client, prompt=prompts[0], max_tokens=20)["choices"][0]["text"]
    for begin in range(2, len(full) - 4, 3):
        stop = full[begin : begin + 4]
        body = {"prompt": prompts[0], "max_tokens": 20, "stop": [stop, "never this"]}
        if is_streamed:
            events = streamed(client, **body)
            text = "".join(e["choices"][0]["text"] for e in events)
            reason = events[-1]["choices"][0]["finish_reason"]
        else:
            (choice,) = ask(client, **body)["choices"]
            text, reason = choice["text"], choice["finish_reason"]
        assert (text, reason) == (full[: full.find(stop)], "stop")


def test_every_field_that_may_be_left_out_may_be_null(client, prompts):
    fields = {f.name: None for f in msgspec.structs.fields(CompletionRequest) if not f.required}
    assert {"metadata", "user", "stop", "path", "stream_options"} <= fields.keys()
    answer = completion(client, fields | GREEDY | {"prompt": prompts[0]})
    assert answer["choices"] == ask(client, prompt=prompts[0])["choices"]


def test_a_top_k_of_minus_one_is_all_tokens_as_clients_of_vllm_say_it(client, prompts):
    body = {"prompt": prompts[0], "temperature": 1.0, "seed": 3, "max_tokens": 12}
    told = [ask(client, **body, top_k=top_k)["choices"] for top_k in (-1, 0)]
    assert told[0] == told[1]


def test_bias_penalties_and_stop_tokens_do_what_they_say(service, client, prompts):
    prompt = prompts[0]
    banned = {str(i): -100 for i in range(service.model.vocab_size) if i not in (40, 41)}
    banned = dict(list(banned.items())[:298])
    (choice,) = ask(client, prompt=prompt, logit_bias=banned | {"40": 100}, max_tokens=6)["choices"]
    tokenized = client.post("/tokenize", json={"prompt": choice["text"]}).json()
    only = service.token_bytes[40].decode("utf-8", "replace")
    assert choice["text"] == only * 6
    assert tokenized["count"] <= 6

    # At a penalty of 2 for each time, a logit that is 100 above falls by 2 with each token.
    biases = {"40": 100, "41": 99}
    body = {"prompt": prompt, "max_tokens": 8, "frequency_penalty": 2, "logit_bias": biases}
    (choice,) = ask(client, **body, logprobs=0)["choices"]
    assert len(set(choice["logprobs"]["tokens"])) == 2

    free = ask(client, prompt=prompt, max_tokens=20, logprobs=0)["choices"][0]
    tokens = free["logprobs"]["tokens"]
    place = next(i for i in range(3, 20) if not tokens[i].startswith("bytes:"))
    (stop,) = _ids_of(service, [tokens[place]])
    first = tokens.index(tokens[place])
    answer = ask(client, prompt=prompt, max_tokens=20, stop_token_ids=[stop], ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == first + 1


def test_texts_become_token_ids_and_back(service, client, prompts):
    (ids,) = service.tokenizer.encode([prompts[0]])
    body = {"model": "toy", "prompt": prompts[0], "return_token_strs": True}
    answer = client.post("/tokenize", json=body).json()
    assert (answer["tokens"], answer["count"]) == (ids.tolist(), len(ids))
    assert answer["max_model_len"] == service.model.max_length
    assert "".join(answer["token_strs"]) == prompts[0]
    back = client.post("/detokenize", json={"tokens": ids.tolist()}).json()
    assert back == {"prompt": prompts[0]}
    assert client.post("/detokenize", json={"tokens": [300]}).status_code == 400
    assert client.post("/tokenize", json=body | {"model": "gpt"}).status_code == 404


@pytest.mark.parametrize(
    ("where", "body"), [("tokenize", {"prompt": "jiji"}), ("detokenize", {"tokens": [1]})]
)
def test_tokenizing_is_done_in_the_threads_that_clients_take_in_turn(
    client, service, monkeypatch, where, body
):
    threads, real = [], service.models.named

    def noting(*args):
        threads.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(service.models, "named", noting)
    assert client.post(f"/{where}", json=body).status_code == 200
    assert threads[0].startswith("requests")


def test_equal_seeds_draw_equal_texts_and_n_draws_several(client, prompts):
    def drawn(**body):
        answer = ask(client, prompt=prompts[0], temperature=1.5, **body)
        return [choice["text"] for choice in answer["choices"]]

    assert drawn(seed=3, n=3) == drawn(seed=3, n=3)
    assert len(set(drawn(seed=3, n=3))) == 3
    assert drawn(seed=3) == drawn(seed=3, n=3)[:1]
    assert not set(drawn(seed=4, n=3)) & set(drawn(seed=3, n=3)), "seeds share no draws"
    assert drawn(seed=-5) == drawn(seed=-5)
    assert len({drawn()[0] for _ in range(4)}) > 1, "without a seed, draws differ"


@pytest.mark.parametrize("seed", [None, 7])
def test_equal_prompts_of_one_request_are_drawn_differently(client, prompts, seed):
    def drawn():
        body = {"prompt": prompts[:1] * 4, "n": 4, "temperature": 1, "seed": seed}
        return [choice["text"] for choice in ask(client, **body)["choices"]]

    texts = drawn()
    assert len(set(texts)) == 16
    assert (drawn() == texts) == (seed is not None)


def test_logprobs_are_those_of_the_full_forward_and_their_tokens_are_the_text(
    service, client, prompts, log_probabilities
):
    path, ids = path_and_ids(service, prompts[0])
    (choice,) = ask(client, prompt=prompts[0], logprobs=2, echo=True)["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(prompts[0])
    assert "".join(logprobs["tokens"]) == choice["text"]
    offsets = np.cumsum([0] + [len(token) for token in logprobs["tokens"]])[:-1]
    assert logprobs["text_offset"] == offsets.tolist()
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)

    all_ids = _ids_of(service, logprobs["tokens"])
    assert all_ids[: len(ids)] == ids.tolist()
    expected = log_probabilities(path, all_ids)
    for place in range(1, len(all_ids)):
        row = expected[place - 1]
        np.testing.assert_allclose(
            logprobs["token_logprobs"][place], row[all_ids[place]], atol=1e-4
        )
        best = max(logprobs["top_logprobs"][place].values())
        np.testing.assert_allclose(best, row.max(), atol=1e-4)
        assert 2 <= len(logprobs["top_logprobs"][place]) <= 3  # and the token itself


def _ids_of(service, tokens):
    spelled = {piece: i for i, piece in enumerate(service.token_bytes)}
    return [spelled[token.encode()] for token in tokens]


@pytest.mark.parametrize("has_echo", [False, True])
def test_token_ids_that_end_within_a_character_are_gone_on_with(service, client, has_echo):
    (ids,) = service.tokenizer.encode(["ji😀"])
    place = next(n for n in range(1, len(ids)) if "\ufffd" in service.tokenizer.decode(ids[:n]))
    for cut in range(place, len(ids)):
        body = {
            "prompt": ids[:cut].tolist(),
            "echo": has_echo,
            "max_tokens": 1,
            "logprobs": 0,
            "logit_bias": {str(ids[cut]): 100},
        }
        (choice,) = ask(client, **body)["choices"]
        pieces = [event["choices"][0]["text"] for event in streamed(client, **body)]
        assert "".join(pieces) == choice["text"]
        whole = service.tokenizer.decode(ids[: cut + 1])
        own = "😀" if cut == len(ids) - 1 else ""
        assert choice["text"] == (whole if has_echo else own)
        assert len(choice["logprobs"]["tokens"]) == (cut + 1 if has_echo else 1)


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_token_the_end_is_the_length_whatever_would_come(service, client, stream):
    (end,) = service.stop_ids
    body = {"prompt": "jiji", "echo": True, "max_tokens": 0, "logit_bias": {str(end): 100}}
    if stream:
        choices = [event["choices"][0] for event in streamed(client, **body)]
    else:
        choices = ask(client, **body)["choices"]
    assert "".join(choice["text"] for choice in choices) == "jiji"
    assert choices[-1]["finish_reason"] == "length"


def test_logprobs_end_where_the_text_ends(client, prompts):
    full = ask(client, prompt=prompts[0], max_tokens=20)["choices"][0]["text"]
    stop = full[5:9]
    (choice,) = ask(client, prompt=prompts[0], max_tokens=20, stop=stop, logprobs=0)["choices"]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets
    assert all(offset < len(choice["text"]) for offset in offsets)
    events = streamed(client, prompt=prompts[0], max_tokens=20, stop=stop, logprobs=0)
    tokens = [t for e in events for t in e["choices"][0]["logprobs"]["tokens"]]
    assert tokens == choice["logprobs"]["tokens"]


def test_a_continuation_ends_when_the_context_is_full(service, client, prompts):
    answer = ask(client, prompt=prompts[0], max_tokens=10_000)
    assert answer["usage"]["total_tokens"] == service.model.max_length
    assert answer["choices"][0]["finish_reason"] == "length"


def test_route_returns_path_modules_and_scores_best_first(service, client, prompts):
    guesses = []
    for prompt in (*prompts[:4], " ".join(prompts[:2])):
        path, ids = path_and_ids(service, prompt)
        route = client.post("/v1/route", json={"prompt": prompt}).json()
        assert route["path"] == path == route["scores"][0]["path"]
        assert route["modules"] == [str(m) for m in service.topology.modules_of(path)]
        scores = [score["score"] for score in route["scores"]]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == 4
        assert route["prompt_tokens"] == len(ids)
        assert route["routed_tokens"] == min(len(ids), 32)
        guesses.append(route["is_guess"])
        assert route["is_guess"] is (len(ids) < 32)
    assert guesses == [True] * 4 + [False], "all but the last are shorter than what a router reads"


def test_examples_are_of_the_runs_own_text_and_there_are_none_where_none_are_known(
    client, service, monkeypatch
):
    def examples():
        return client.get("/v1/models").json()["data"][0]["dipaco"]["examples"]

    corpus = service.run.corpus
    texts = map(service.tokenizer.decode, corpus.tokens(corpus.documents("test")))
    beginnings = tuple(text.lstrip() for text in texts)
    assert len(examples()) == 5
    for example in examples():
        assert any(text.startswith(example) for text in beginnings)
    monkeypatch.setattr(service, "examples", [])
    assert examples() == []


def test_health_metrics_document_and_page_are_served(client, prompts):
    ask(client, prompt=prompts[0])
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").json()["status"] == "ready"
    metrics = client.get("/metrics").text
    assert 'dipaco_answers_total{endpoint="/v1/completions",status="200"}' in metrics
    for name in ("cold_path_seconds_bucket", "cache_bytes", "rows"):
        assert f"\ndipaco_{name}" in metrics
    document = client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert "temperature" in document["components"]["schemas"]["CompletionRequest"]["properties"]
    for page in (client.get("/"), docs := client.get("/docs")):
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
    named = set(re.findall(r'href="#(\w+)"', docs.text))
    assert "CompletionRequest" in named
    assert named <= set(re.findall(r'id="(\w+)"', docs.text))
    assert all(f"POST {path}</code>" in docs.text for path in ("/v1/completions", "/tokenize"))
    assert "<code>temperature</code>: number 0 to 2" in docs.text
    assert "<code>model</code>: string, needed" in docs.text


# --- the official client ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def official(client):
    openai = pytest.importorskip("openai", reason="the official client is in the `test-all` extra")
    return openai.OpenAI(
        api_key="none", base_url="http://testserver/v1", http_client=client, max_retries=0
    )


def test_the_official_client_reads_responses_which_are_chats_and_kept_nowhere(official, client):
    import openai
    import pydantic

    ask = official.responses.create
    system, user = {"role": "system", "content": "be brief"}, {"role": "user", "content": "jiji"}
    chat = {"model": "toy", "temperature": 0, "max_tokens": 6, "messages": [system, user]}
    wanted = client.post("/v1/chat/completions", json=chat).json()
    body = {"model": "toy", "temperature": 0, "max_output_tokens": 6, "instructions": "be brief"}
    answer = ask(**body, input="jiji")
    (choice,) = wanted["choices"]
    assert (answer.output_text, answer.path) == (choice["message"]["content"], choice["path"])
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.input_tokens == wanted["usage"]["prompt_tokens"]
    assert answer.usage.output_tokens == 6
    with official.responses.stream(**body, input="jiji") as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    text, part = "output_text", "content_part"
    begun = ["created", "in_progress", "output_item.added", f"{part}.added"]
    ended = [f"{text}.done", f"{part}.done", "output_item.done", "incomplete"]
    deltas = kinds[4:-4]
    assert kinds == begun + [f"{text}.delta"] * len(deltas) + ended
    assert "".join(event.delta for event in events[4:-4]) == answer.output_text
    assert events[-1].response.output_text == events[-4].text == answer.output_text

    # A conversation goes on with the answers that came, as they came.
    part = {"type": "input_text", "text": "jiji"}
    so_far = [
        {"role": "user", "content": [part]},
        *answer.output,
        {"role": "user", "content": "ja"},
    ]
    later = ask(**body, input=so_far)
    said = [user, choice["message"], {"role": "user", "content": "ja"}]
    wanted = client.post("/v1/chat/completions", json=chat | {"messages": [system, *said]}).json()
    assert later.output_text == wanted["choices"][0]["message"]["content"]

    class Sure(pydantic.BaseModel):
        sure: bool

    parsed = official.responses.parse(model="toy", input="jiji", text_format=Sure)
    assert parsed.status == "completed"
    assert isinstance(parsed.output_parsed, Sure)
    with official.responses.stream(model="toy", input="jiji", text_format=Sure) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Sure)
    tool = {"type": "function", "name": "add", "parameters": {}}
    kept = {"previous_response_id": "resp_1", "store": True, "background": True, "tools": [tool]}
    for name, value in {**kept, "conversation": "conv_1", "extra_body": {"n": 2}}.items():
        with pytest.raises(openai.BadRequestError, match=r"Leave `\w+` out") as refused:
            ask(**body, input="jiji", **{name: value})
        assert refused.value.param in (name, "n")
    assert ask(**body, input="jiji", store=False, tools=[]).status == "incomplete"


def test_a_stream_of_a_response_that_fails_ends_with_what_failed(official, service, monkeypatch):
    real = Answer.events

    async def failing(answer):
        """The first events, which may be all on a quick machine, and then a fault."""
        async for events in real(answer):
            yield events
            raise RuntimeError("a fault")

    monkeypatch.setattr(Answer, "events", failing)
    with official.responses.stream(model="toy", input="jiji", max_output_tokens=20) as stream:
        *_, failed = stream
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert failed.response.error.message == "Internal error; see the server's log."


def test_the_official_client_reads_answers_streams_models_and_errors(official, client, prompts):
    import openai

    body = {"model": "toy", "prompt": prompts[0], "max_tokens": 12, "temperature": 0}
    text = ask(client, prompt=prompts[0])["choices"][0]["text"]
    answer = official.completions.create(**body, logprobs=1)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text, "length")
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.tokens) == 12
    with official.completions.create(**body, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == text
    named = official.completions.create(**body, extra_body={"path": 2})
    assert named.choices[0].path == 2
    assert next(iter(official.models.list())).id == "toy"
    assert official.models.retrieve("toy/dense").id == "toy/dense"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        official.completions.create(**body | {"model": "gpt"})
    with pytest.raises(openai.BadRequestError, match="`suffix`") as refused:
        official.completions.create(**body, suffix="and so on")
    assert refused.value.param == "suffix"
