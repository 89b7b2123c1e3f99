"""`dipaco generate`: its text is what the model predicts."""

import jax
import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.data.config import END_OF_TEXT
from dipaco.data.toy import toy_documents
from dipaco.model.lm import forward

PROMPT = next(toy_documents(documents=1, words=4, seed=7)).text.strip()


def test_greedy_text_is_the_argmax_of_the_full_forward(dipaco, tiny, opened):
    ended = dipaco("generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 12)
    assert ended.code == 0, ended.err
    path = int(ended.err.split()[1])
    release, tokenizer = opened.ledger.facts.release(MODULAR), opened.corpus.tokenizer()
    assert ended.err.startswith(f"path {path} = {' + '.join(release.paths[path])}\n")
    model = opened.config.model
    run = jax.jit(lambda parts, tokens, segments: forward(model, parts, tokens, segments=segments))
    parts = opened.path_of(release, path)
    (ids,) = tokenizer.encode([PROMPT])
    ids = ids.tolist()
    for _ in range(12):
        tokens = np.zeros((1, model.max_length), np.int32)
        tokens[0, : len(ids)] = ids
        logits, _ = run(parts, tokens, (np.arange(model.max_length) < len(ids))[None].astype(int))
        ids.append(int(np.argmax(logits[0, len(ids) - 1])))
    assert ended.out == tokenizer.decode(ids) + "\n"


def test_the_best_score_chooses_the_path_unless_a_path_is_given(dipaco, tiny):
    ended = dipaco("generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 1)
    first, second, _ = ended.err.split("\n", 2)
    best = second.removeprefix("router's scores, the best first: ").split(", ")
    scores = [float(score.split()[2]) for score in best]
    assert best[0].startswith(f"{' '.join(first.split()[:2])} ")
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 4
    other = 3 - int(first.split()[1])
    arguments = ("--prompt", PROMPT, "--max-tokens", 1, "--path", other)
    assert dipaco("generate", "--run", tiny.folder, *arguments).err.startswith(f"path {other} =")


def test_a_text_ends_by_itself_unless_that_is_ignored(dipaco, tiny):
    command = ["generate", "--run", tiny.folder, "--prompt", "", "--temperature", 4, "--path", 0]
    command += ["--max-tokens", 60, "--seed"]
    for seed in range(20):
        ended = dipaco(*command, seed)
        assert ended.code == 0, ended.err
        if "ended by itself" in ended.err:
            break
        assert "the text did not end" in ended.err
    assert END_OF_TEXT not in ended.out
    number = int(ended.err.splitlines()[-1].split()[0])
    assert number < 60
    longer = dipaco(*command, seed, "--min-tokens", 60)
    assert END_OF_TEXT not in longer.out
    assert "60 tokens in" in longer.err
    ignored = dipaco(*command, seed, "--ignore-eos")
    assert ignored.out.startswith(ended.out[:-1] + END_OF_TEXT)
    assert "60 tokens in" in ignored.err


def test_sampled_text_depends_on_the_seed(dipaco, tiny):
    command = ["generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 12]
    command += ["--temperature", 1.5, "--seed"]
    one, other = (dipaco(*command, seed) for seed in (1, 2))
    assert (one.code, other.code) == (0, 0)
    assert one.out != other.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--prompt", "x", "--min-tokens", "65"], "`--min-tokens` is 65. Expected 0 to 64"),
        (["--prompt", "word " * 100], "and the context (`max_length`) holds 64"),
        (["--prompt", "x", "--temperature", "-1"], "BadSetting: `temperature` is -1.0."),
        (["--prompt", "x", "--temperature", "nan"], "BadSetting: `temperature` is nan."),
        (["--prompt", "x", "--top-p", "0"], "BadSetting: `top_p` is 0.0."),
        (["--prompt", "x", "--top-k", "-2"], "BadSetting: `top_k` is -2."),
        (["--prompt", "x", "--max-tokens", "0"], "`--max-tokens` is 0. Expected 1 or more."),
        (["--prompt", "x", "--seed", "-1"], "`--seed` is -1."),
        (["--prompt", "x", "--path", "4"], "no path 4; paths are numbered 0 to 3."),
        (["--prompt", "x", "--path", "-1"], "no path -1; paths are numbered 0 to 3."),
        (
            ["--prompt", "x", "--phase", "9"],
            "no release of `modular` at phase 9. It has releases of phases: ",
        ),
        (["--prompt", "x", "--arm", "dens"], "no arm `dens`. It has: base, modular, dense"),
    ],
)
def test_bad_arguments_are_refused_before_any_text_is_printed(dipaco, tiny, arguments, error):
    ended = dipaco("generate", "--run", tiny.folder, *arguments)
    assert ended.code == 2
    assert error in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""
