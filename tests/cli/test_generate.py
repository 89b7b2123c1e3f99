"""`dipaco generate`: its text is what the model predicts."""

import io
import re

import jax
import numpy as np
import pytest
import tokenizers

from dipaco.cli.main import main
from dipaco.config import MODULAR
from dipaco.data.config import END_OF_TEXT
from dipaco.data.corpus import Corpus
from dipaco.data.tokenizer import load_tokenizer
from dipaco.data.toy import toy_documents
from dipaco.model.lm import forward
from dipaco.serving.continuation import generate
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.dispatch import dispatch
from tests.cli.conftest import as_json

PROMPT = next(toy_documents(documents=1, words=4, seed=7)).text.strip()


@pytest.fixture(scope="module")
def greedy(here, tiny):
    """`dipaco generate`, of 12 tokens."""
    command = ("generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 12)
    return here(*command, "--temperature", 0)


def test_greedy_text_is_the_argmax_of_the_full_forward(greedy, opened):
    ended = greedy
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


def test_the_first_word_made_is_apart_from_the_prompt(tiny, opened, tmp_path, monkeypatch, capfd):
    size = opened.config.model.vocab_size
    words = {f"w{number}": number for number in range(size)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.setattr(Corpus, "tokenizer", lambda _: tokenizer)
    command = ["generate", "--run", str(tiny.folder), "--prompt", "w5 w6", "--max-tokens", "3"]
    assert main([*command, "--ignore-eos"]) == 0
    first, second, *made = capfd.readouterr().out.split(" ")
    assert (first, second) == ("w5", "w6")
    assert len(made) == 3


def test_control_characters_of_a_text_do_not_reach_a_terminal(tiny, monkeypatch, capfd):
    from dipaco.serving.text import TextWriter

    add_before = TextWriter.add
    monkeypatch.setattr(
        TextWriter, "add", lambda *given: add_before(*given)._replace(text="\x1b[2J")
    )
    command = ["generate", "--run", str(tiny.folder), "--prompt", "a\x07", "--max-tokens", "2"]
    command += ["--ignore-eos"]
    assert main(command) == 0
    assert capfd.readouterr().out.startswith("a\x07\x1b[2J\x1b[2J")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(command) == 0
    assert capfd.readouterr().out.startswith("a\ufffd\ufffd[2J\ufffd[2J")


def test_the_best_score_chooses_the_path(greedy):
    first, second, _ = greedy.err.split("\n", 2)
    best = second.removeprefix("router's scores, the best first: ").split(", ")
    scores = [float(score.split()[2]) for score in best]
    assert best[0].startswith(f"{' '.join(first.split()[:2])} ")
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 4


def test_a_text_ends_by_itself_unless_that_is_ignored(here, tiny):
    command = ["generate", "--run", tiny.folder, "--prompt", "", "--temperature", 4, "--path", 0]
    command += ["--max-tokens", 60, "--seed"]
    for seed in range(20):
        ended = here(*command, seed)
        assert ended.code == 0, ended.err
        if "ended by itself" in ended.err:
            break
        assert "the text did not end" in ended.err
    assert END_OF_TEXT not in ended.out
    number = int(ended.err.splitlines()[-1].split()[0])
    assert number < 60
    longer = here(*command, seed, "--min-tokens", 60)
    assert END_OF_TEXT not in longer.out
    assert "60 tokens in" in longer.err
    ignored = here(*command, seed, "--ignore-eos")
    assert ignored.out.startswith(ended.out[:-1] + END_OF_TEXT)
    assert "60 tokens in" in ignored.err


def test_sampled_text_depends_on_the_seed_and_comes_from_the_path_that_is_given(here, tiny, greedy):
    path = 3 - int(greedy.err.split()[1])
    command = ["generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 12]
    command += ["--temperature", 1.5, "--path", path, "--seed"]
    one, other = (here(*command, seed) for seed in (1, 2))
    assert (one.code, other.code) == (0, 0)
    assert one.out != other.out
    assert one.err.startswith(f"path {path} =")


def test_the_seed_that_is_shown_gives_the_text_again(here, tiny):
    command = ["generate", "--run", tiny.folder, "--prompt", PROMPT, "--max-tokens", 20]
    first = here(*command)
    assert first.code == 0, first.err
    (seed,) = re.findall(r"^temperature 1, --seed (\d+) gives it again$", first.err, re.MULTILINE)
    assert here(*command, "--seed", seed).out == first.out
    found = as_json(here(*command, "--seed", seed, "--json"))
    assert f"{found.pop('text')}\n" == first.out
    assert first.err.startswith(f"path {found.pop('path')} =")
    assert f"{found.pop('tokens')} tokens in" in first.err
    assert found == {"seed": int(seed), "has_ended": "ended by itself" in first.err}


def test_a_prompt_from_standard_input_is_cut_at_its_beginning_if_that_is_wanted(
    tiny, opened, monkeypatch, capfd
):
    """As if its end had been given, on the path of its beginning."""
    given = " ".join([PROMPT] * 20)
    (ids,) = opened.corpus.tokenizer().encode([given])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode() + b"\n")))
    command = ["generate", "--run", str(tiny.folder), "--temperature", "0", "--max-tokens", "20"]
    assert main([*command, "--prompt", "-", "--truncate"]) == 0
    cut = capfd.readouterr()
    assert f"prompt: its last 44 of {len(ids)} tokens are read" in cut.err
    release = opened.ledger.facts.release(MODULAR)
    path = dispatch(opened, release, ids).path
    assert cut.err.startswith(f"path {path} = ")
    greedy = SamplingSettings(temperature=0)
    parts, model = opened.path_of(release, path), opened.config.model
    made = list(
        generate(model, parts, ids[-44:].tolist(), max_new_tokens=20, sampling=greedy, seed=0)
    )
    assert len(made) == 20
    assert cut.out.startswith(given)
    end = opened.corpus.edges.tokens.end
    made = made[: made.index(end)] if end in made else made
    assert cut.out == given + opened.corpus.tokenizer().decode(made) + "\n"


def test_a_release_without_all_its_paths_is_refused_by_likelihood_alone(
    here, tiny, opened, copy_of
):
    folder = copy_of(tiny).folder
    release = opened.ledger.facts.release(MODULAR)
    ids = opened.corpus.tokenizer().encode([PROMPT])[0]
    chosen = release.paths[dispatch(opened, release, ids).path]
    (gone, *_) = set(release.objects) - set(chosen.values())
    (folder / release.objects[gone].name).unlink()
    before = sizes(folder)
    command = ("generate", "--run", folder, "--prompt", PROMPT, "--max-tokens", 2)
    ended = here(*command, "--rule", "likelihood")
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert re.search(r"NotAllPaths: .* path \d cannot be read", ended.err), ended.err
    assert here(*command).code == 0  # by features, its path is whole
    assert sizes(folder) == before


def sizes(folder):
    """Bytes of every file but what SQLite has beside its own."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file: file.stat().st_size for file in files if "sqlite-" not in file.name}


def test_an_unknown_option_is_answered_with_the_nearest(here):
    for argument, says in {
        "--tokens": "no option `--tokens`. Did you mean `--min-tokens` or `--max-tokens`?",
        "--temprature=2": "no option `--temprature`. Did you mean `--temperature`",
        "--zzz": "no option `--zzz`; `dipaco generate --help` lists all",
        "a.b=1": "`a.b=1` changes a setting: give `--set` before it",
        "God": "`God` is one word too many. Put a text with blanks in quotes",
    }.items():
        ended = here("generate", "--run", "/nowhere", "--prompt", "And", argument)
        assert (ended.code, says in ended.err) == (2, True), ended.err


BAD_ARGUMENTS = {
    "--min-tokens 65": "`--min-tokens` is 65. Expected 0 to 64",
    "--temperature -1": "BadSetting: `temperature` is -1.0.",
    "--temperature nan": "BadSetting: `temperature` is nan.",
    "--top-p 0": "BadSetting: `top_p` is 0.0.",
    "--top-k -2": "BadSetting: `top_k` is -2.",
    "--max-tokens 0": "`--max-tokens` is 0. Expected 1 or more.",
    "--seed -1": "`--seed` is -1.",
    "--path 4": "no path 4. Paths are numbered 0 to 3.",
    "--path -1": "no path -1. Paths are numbered 0 to 3.",
    "--phase 9": "no release of `modular` at phase 9. It has releases of phases: ",
    "--arm dens": "no arm `dens`. It has: base, modular, dense",
}


def test_bad_arguments_are_refused_before_any_text_is_printed(here, tiny):
    generate = ("generate", "--run", tiny.folder, "--prompt")
    ended = here(*generate, "word " * 100)
    said = {"holds 64. Shorten it, or give `--truncate`": ended}
    said |= {error: here(*generate, "x", *words.split()) for words, error in BAD_ARGUMENTS.items()}
    for error, ended in said.items():
        assert (ended.code, ended.out, error in ended.err) == (2, "", True), (error, ended.err)
        assert "Traceback" not in ended.err
