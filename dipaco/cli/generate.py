"""Continue a prompt: shows which path was chosen and why, then streams the text.

  dipaco generate --run runs/quickstart --prompt "And God said"
  dipaco generate --run runs/quickstart --prompt "def main(" --temperature 0.8 --top-p 0.9

Greedy unless a temperature is given. The text goes to standard output, everything else to standard
error. It stops where the model ends the text. A prompt shorter than the routing prefix is routed by
its own tokens; an empty one is the start of a text.
"""

import argparse
import sys
import time

from dipaco.cli.options import add_release, check_path, find_release

HELP = "continue a prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    parser.add_argument("--prompt", required=True, help="the text to continue")
    parser.add_argument(
        "--path", type=int, default=None, help="use this path instead of the router's choice"
    )
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens to generate (64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 = greedy (the default)")
    parser.add_argument(
        "--top-k", type=int, default=0, help="sample from the k likeliest tokens; 0 = all"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        help="sample from the likeliest tokens with this total probability",
    )
    parser.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        help="leave out tokens below this share of the best one's probability",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="above 1: tokens that occurred before are less likely; 1 = off",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    parser.add_argument(
        "--min-tokens", type=int, default=0, help="tokens before which the text does not end (0)"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the end of the text")


def run(options: argparse.Namespace) -> int:
    from dipaco.serving.decoding.sampling import SamplingSettings

    sampling = SamplingSettings(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
    )

    import numpy as np

    from dipaco.caches import cache_folder
    from dipaco.errors import BadSetting
    from dipaco.runs.opening import reading
    from dipaco.runs.programs import use_compilation_cache
    from dipaco.serving.decoding.generate import generate
    from dipaco.serving.decoding.loop import check_fits
    from dipaco.serving.dispatch import dispatch

    if options.max_tokens < 1:
        raise BadSetting(name="--max-tokens", value=options.max_tokens, expected="1 or more")
    if not 0 <= options.min_tokens <= options.max_tokens:
        expected = f"0 to {options.max_tokens} (`--max-tokens`)"
        raise BadSetting(name="--min-tokens", value=options.min_tokens, expected=expected)
    if not 0 <= options.seed < 2**63:
        raise BadSetting(name="--seed", value=options.seed, expected="0 to 2^63 - 1")
    try:
        options.prompt.encode()
    except UnicodeEncodeError as error:
        shown = ascii(options.prompt)
        raise BadSetting(name="--prompt", value=shown, expected="UTF-8") from error
    use_compilation_cache(cache_folder() / "compiled")
    with reading(options.run) as opened:
        release = find_release(opened, options)
        check_path(options.path, release)
        tokenizer = opened.corpus.tokenizer()
        (prompt,) = tokenizer.encode([options.prompt])
        edges = opened.corpus.edges.tokens
        if not len(prompt) and edges.start is not None:
            prompt = np.array([edges.start], np.int32)
        prompt_ids = prompt.tolist()
        check_fits(opened.config.model, prompt_ids)
        choice = dispatch(opened, release, prompt, options.path)
        print(choice.describe(), file=sys.stderr)
        parts = opened.path_of(release, choice.path)
        started, ids = time.monotonic(), []
        shown, has_ended = "", False
        tokens = generate(
            opened.config.model,
            parts,
            prompt_ids,
            max_new_tokens=options.max_tokens,
            sampling=sampling,
            seed=options.seed,
            stop_ids=frozenset() if options.ignore_eos else edges.stop_ids,
            min_new_tokens=options.min_tokens,
        )
        print(options.prompt, end="", flush=True)
        for token in tokens:
            if has_ended := token == edges.end and not options.ignore_eos:
                break
            ids.append(token)
            text = tokenizer.decode(ids)
            if not text.endswith("\ufffd"):  # a character that is incomplete so far
                print(text[len(shown) :], end="", flush=True)
                shown = text
        print(tokenizer.decode(ids)[len(shown) :], flush=True)
        seconds = time.monotonic() - started
        if edges.end is None:
            end = "the model knows no end of a text"
        elif options.ignore_eos:
            end = "ends of the text were ignored"
        else:
            end = "the text ended by itself" if has_ended else "cut there: the text did not end"
        made = f"{len(ids)} tokens in {seconds:.1f} s, compilation included"
        print(f"{made}; {end}", file=sys.stderr)
    return 0
