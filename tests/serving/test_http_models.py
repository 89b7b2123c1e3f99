"""The arms of a run are models of one server; its paths say what they were trained on."""

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from tests.support.serving_rig import completion, error_of, full_logits

OTHERS = ["toy/dense", "toy/dense_equal_tokens", "toy/base"]


def test_every_arm_with_a_release_is_a_model_and_the_served_one_comes_first(client, service):
    models = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["toy", *OTHERS]
    for model in models:
        card = model["dipaco"]
        assert model == client.get(f"/v1/models/{model['id']}").json()
        newest = service.run.ledger.facts.release(card["arm"])
        assert (card["phase"], card["release"]) == (newest.phase, newest.digest)
        assert card["is_routed"] == (card["num_paths"] == 4) == (model["id"] == "toy")
        assert (card["score_meaning"] is not None) == card["is_routed"]
    assert models[1]["dipaco"]["levels"][0]["modules"] == ["all/0000"]
    card = models[0]["dipaco"]
    assert (card["context"], card["prefix_tokens"]) == (64, 32)
    names = [level["modules"] for level in card["levels"]]
    assert names == [["early/0000", "early/0001"], ["late/0000", "late/0001"]]
    assert card["parameters_total"] == 2 * card["parameters_per_path"]
    asking = client.post("/v1/completions", json={"model": "gpt", "prompt": "jiji"})
    for answer in (asking, client.get("/v1/models/gpt")):
        message = error_of(answer, 404, "model", "model_not_found")
        assert "This server has `toy`, `toy/dense`" in message


@pytest.mark.parametrize("name", OTHERS)
def test_text_of_another_arm_is_that_of_its_own_modules(client, service, prompts, name):
    release = service.run.ledger.facts.release(name.removeprefix("toy/"))
    parts = service.run.path_of(release, 0)
    ids = service.tokenizer.encode([prompts[0]])[0].tolist()
    made = list(ids)
    while len(made) < len(ids) + 8:
        made.append(int(full_logits(service.model, parts, made)[-1].argmax()))
    body = {"model": name, "prompt": prompts[0], "max_tokens": 8, "temperature": 0}
    answer = completion(client, body)
    assert answer["model"] == name
    assert answer["system_fingerprint"] == release.digest
    assert answer["choices"][0]["text"] == service.tokenizer.decode(made[len(ids) :])
    assert answer["choices"][0]["path"] == 0
    assert "path" in error_of(client.post("/v1/completions", json=body | {"path": 1}), 400, "path")
    route = client.post("/v1/route", json={"model": name, "prompt": prompts[0]}).json()
    assert (route["path"], route["scores"], route["is_guess"]) == (0, None, False)
    counted = f'dipaco_prompts_total{{model="{name}",path="0"}}'
    assert counted in client.get("/metrics").text


def test_paths_say_what_they_were_trained_on(client, service):
    from dipaco.runs.reading.inspection import inspection_of

    told = client.get("/v1/paths").json()
    assert (told["model"], len(told["data"])) == ("toy", 4)
    for card, path in zip(told["data"], inspection_of(service.run)["paths"], strict=True):
        assert (card["path"], card["modules"]) == (path["path"], path["modules"])
        assert (card["documents"], card["share"]) == (path["documents"], path["share"])
        total = sum(path["domains"].values())
        assert card["domains"] == {name: n / total for name, n in path["domains"].items()}
        assert list(card["domains"].values()) == sorted(card["domains"].values(), reverse=True)
    (dense,) = client.get("/v1/paths", params={"model": "toy/dense"}).json()["data"]
    assert dense == {
        "path": 0,
        "modules": ["all/0000"],
        **dict.fromkeys(("documents", "share", "domains")),
    }
    error_of(client.get("/v1/paths", params={"model": "gpt"}), 404, "model")


def test_a_newer_release_of_another_arm_is_followed_and_a_damaged_one_is_not(service, monkeypatch):
    from dipaco.serving.models import ReleaseHealth, ServedModels

    said = []
    run = service.run
    first = run.ledger.facts.release("dense", 1)
    models = ServedModels(run, run.ledger.facts.release("modular"), 1, ReleaseHealth(), said.append)
    dense = models.named("toy/dense")
    assert dense.releases.current.digest == first.digest, "the phase that is served"
    running = dense.releases.current
    models._phase = None
    with monkeypatch.context() as patch:
        damaged = {"all/0000": "it is damaged"}
        patch.setattr("dipaco.serving.models.read_all", lambda *_: damaged)
        models.follow(run)
        models.follow(run)
    assert said == ["`dense` at phase 2 is not served: it is damaged"]
    assert dense.releases.current is running
    models.follow(run)
    assert dense.releases.current.release.phase == 2
    assert dense.releases.find(first.digest) is running
