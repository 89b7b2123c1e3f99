"""Generating without a server: as many tokens as fit, and those of `transformers`."""

import dataclasses

import jax
import numpy as np
import pytest

from dipaco.model.huggingface import EdgeToken, export_checkpoint
from dipaco.model.spec import describe
from dipaco.serving.continuation import generate
from dipaco.serving.decoding.sampling import SamplingSettings
from tests.support.serving_rig import CONFIG, random_parts


def test_greedy_tokens_equal_those_of_transformers_with_norms_of_queries_and_keys(tmp_path):
    torch = pytest.importorskip("torch", reason="parity needs the `parity` extra")
    transformers = pytest.importorskip("transformers", reason="parity needs the `parity` extra")
    config = dataclasses.replace(CONFIG, qk_norm=True)
    rng = np.random.default_rng(0)
    parts = jax.tree.map(
        lambda spec: rng.normal(0, 0.5, spec.shape).astype(np.float32), describe(config)
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    export_checkpoint(config, parts, tmp_path / "tokenizer.json", tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    prompt, greedy = [5, 9, 2], SamplingSettings()
    ours = list(generate(config, parts, prompt, max_new_tokens=20, sampling=greedy, seed=0))
    theirs = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, 3, dtype=torch.long),
        max_new_tokens=20,
        do_sample=False,
    )
    assert ours == theirs[0, 3:].tolist()


def test_greedy_text_stops_where_that_of_transformers_stops(tmp_path):
    torch = pytest.importorskip("torch", reason="parity needs the `parity` extra")
    transformers = pytest.importorskip("transformers", reason="parity needs the `parity` extra")
    prompt, greedy = [5, 9, 2], SamplingSettings()
    settings = {"max_new_tokens": 20, "sampling": greedy, "seed": 0}
    free = list(generate(CONFIG, random_parts(0), prompt, **settings))
    stop = free[7]
    (tmp_path / "tokenizer.json").write_text("{}")
    export_checkpoint(
        CONFIG,
        random_parts(0),
        tmp_path / "tokenizer.json",
        tmp_path / "out",
        end=EdgeToken(stop, "<end>"),
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for fewest in (0, 12):
        ours = list(
            generate(
                CONFIG,
                random_parts(0),
                prompt,
                stop_ids=frozenset({stop}),
                min_new_tokens=fewest,
                **settings,
            )
        )
        theirs = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, 3, dtype=torch.long),
            max_new_tokens=20,
            min_new_tokens=fewest,
            do_sample=False,
        )
        assert ours == theirs[0, 3:].tolist()
        assert (len(ours) < 12) == (fewest == 0)


def test_generate_makes_the_tokens_asked_for_or_those_that_fit():
    for prompt, max_new_tokens, num_made in (
        ([1] * 50, 0, 0),
        ([1] * 50, 9, 9),
        ([1] * 60, 100, 4),
    ):
        settings = {"max_new_tokens": max_new_tokens, "sampling": SamplingSettings(), "seed": 0}
        assert len(list(generate(CONFIG, random_parts(0), prompt, **settings))) == num_made
