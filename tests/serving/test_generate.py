"""Generating without a server: as many tokens as fit, and those of `transformers`."""

import dataclasses

import pytest

from dipaco.model.huggingface import EdgeToken, export_checkpoint
from dipaco.serving.continuation import generate
from dipaco.serving.decoding.sampling import SamplingSettings
from tests.support.serving_rig import CONFIG, random_parts


@pytest.mark.parametrize("qk_norm", [False, True])
def test_greedy_text_is_that_of_transformers_and_stops_where_that_stops(tmp_path, qk_norm):
    torch = pytest.importorskip("torch", reason="parity needs the `parity` extra")
    transformers = pytest.importorskip("transformers", reason="parity needs the `parity` extra")
    config = dataclasses.replace(CONFIG, qk_norm=qk_norm)
    parts, prompt = random_parts(0, config), [5, 9, 2]
    tokenizer, out = tmp_path / "tokenizer.json", tmp_path / "out"
    greedy = {"max_new_tokens": 20, "sampling": SamplingSettings(), "seed": 0}
    free = list(generate(config, parts, prompt, **greedy))
    stop = free[7]
    tokenizer.write_text("{}")
    export_checkpoint(config, parts, tokenizer, out, end=EdgeToken(stop, "<end>"))
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    for fewest in (0, 12, 20):
        ends = {"stop_ids": frozenset({stop}), "min_new_tokens": fewest}
        ours = list(generate(config, parts, prompt, **greedy, **ends))
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
