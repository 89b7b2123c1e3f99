"""Continue a prompt, or answer a file of requests.

  dipaco generate --run runs/quickstart --prompt "And God said"
  dipaco generate --run runs/quickstart --prompt "def main(" --temperature 0.8 --top-p 0.9
  cat letter.txt | dipaco generate --run runs/quickstart --prompt - --truncate

Tokens are drawn at temperature 1, as by `dipaco serve`, or greedily at 0. The text goes to standard
output, the seed and everything else to standard error. A terminal sees control characters as
U+FFFD. The text stops where the model ends it. A prompt shorter than the routing prefix is routed
by all its tokens. An empty one is the start of a text.

  dipaco generate --run runs/quickstart --batch requests.jsonl --out answers.jsonl
      a file in OpenAI's batch format, each line a request as `dipaco serve` takes it. A bad line is
      answered with an error. Interrupted, the same command goes on. Needs the extra `serve`
"""

import argparse
import json
import secrets
import sys
import time
from pathlib import Path

from dipaco.cli.options import (
    add_json,
    add_release,
    add_rule,
    check_path,
    find_release,
    option_of,
    output_path,
)

HELP = "continue a prompt"
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--batch", type=Path, metavar="FILE", help="answer the requests of a file (JSON lines)"
    )
    parser.add_argument(
        "--out", type=output_path, metavar="FILE", help="where the answers to --batch go"
    )
    what.add_argument(
        "--prompt",
        metavar="TEXT",
        help="the text to continue; - reads it from standard input, without a last line end",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="if a prompt leaves no room for --max-tokens, read only its end, at least half of "
        "the context; its beginning still chooses the path",
    )
    parser.add_argument(
        "--path", type=int, default=None, help="use this path instead of the router's choice"
    )
    add_rule(parser)
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens to generate (64)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 = greedy (default: 1)")
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
    parser.add_argument("--seed", type=int, help="of the sampling (default: another each time)")
    parser.add_argument(
        "--min-tokens", type=int, default=0, help="tokens before which the text does not end (0)"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the end of the text")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    return _continue(options) if options.batch is None else _answer_batch(options)


def _answer_batch(options: argparse.Namespace) -> int:
    from dipaco.errors import BadSetting, needs_extra
    from dipaco.runs.opening import reading

    with needs_extra("serve", feature="`--batch`"):
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401

    own = argparse.ArgumentParser()
    add_arguments(own)
    for name in ("truncate", "path", "max_tokens", "min_tokens", "ignore_eos", "seed", *SAMPLING):
        if (value := getattr(options, name)) != own.get_default(name):
            expected = "left out beside `--batch`: each of its requests says so itself"
            raise BadSetting(name=option_of(name), value=value, expected=expected)
    if not options.batch.is_file():
        raise BadSetting(name="--batch", value=options.batch, expected="a file of JSON lines")
    if options.out is None or options.out.exists():
        expected = "a file that is not there yet, for the answers"
        raise BadSetting(name="--out", value=options.out, expected=expected)
    with reading(options.run) as opened:
        release = find_release(opened, options)

    from dipaco.observe.progress import CompileProgress
    from dipaco.runs.programs import use_compilation_cache
    from dipaco.serving.http.app import HttpSettings, make_app
    from dipaco.serving.http.batch_file import answer_file
    from dipaco.serving.http.chat_template import chat_of_run
    from dipaco.serving.service import Service, ServiceSettings
    from dipaco.serving.warm_up import WarmUp

    use_compilation_cache()
    settings = ServiceSettings(arm=options.arm, phase=release.phase, rule=options.rule)
    with Service(options.run, settings) as service:
        app = make_app(service, settings=HttpSettings(chat=chat_of_run(service.run)))
        with CompileProgress() as progress:
            service.start(WarmUp(progress.show))
        digest, rows = service.releases.current.digest, settings.limits.rows
        number, errors = answer_file(app, digest, options.batch, options.out, rows)
    print(f"{options.out}: {number:,} rows, {errors:,} of them errors", file=sys.stderr)
    return 0


def _continue(options: argparse.Namespace) -> int:
    from dipaco.serving.decoding.sampling import SamplingSettings

    sampling = SamplingSettings(**{name: getattr(options, name) for name in SAMPLING})

    from dipaco.errors import BadSetting
    from dipaco.observe.terminal import visible
    from dipaco.runs.opening import reading
    from dipaco.runs.programs import use_compilation_cache
    from dipaco.serving.continuation import begin_text, prompt_tokens
    from dipaco.serving.decoding.request_queue import Token
    from dipaco.serving.errors import ContextTooLong
    from dipaco.serving.text import TextWriter, text_starts, token_bytes

    if options.max_tokens < 1:
        raise BadSetting(name="--max-tokens", value=options.max_tokens, expected="1 or more")
    if not 0 <= options.min_tokens <= options.max_tokens:
        expected = f"0 to {options.max_tokens} (`--max-tokens`)"
        raise BadSetting(name="--min-tokens", value=options.min_tokens, expected=expected)
    seed = secrets.randbits(31) if options.seed is None else options.seed
    if not 0 <= seed < 2**63:
        raise BadSetting(name="--seed", value=seed, expected="0 to 2^63 - 1")
    text = _prompt_of(options)
    use_compilation_cache()
    with reading(options.run) as opened:
        release = find_release(opened, options)
        check_path(options.path, release)
        tokenizer = opened.corpus.tokenizer()
        edges = opened.corpus.edges.tokens
        prompt = prompt_tokens(opened, text)
        prompt_ids = prompt.tolist()
        if options.truncate:
            context = opened.config.model.max_length
            prompt_ids = prompt_ids[-max(context - options.max_tokens, context // 2) :]
        elif len(prompt) >= opened.config.model.max_length:
            raise ContextTooLong(
                num_tokens=len(prompt),
                where="the context (`max_length`)",
                limit=opened.config.model.max_length,
                remedy="Shorten it, or give `--truncate`, which reads its end only.",
            )
        choice, tokens = begin_text(
            opened,
            release,
            prompt,
            prompt_ids,
            max_tokens=options.max_tokens,
            sampling=sampling,
            seed=seed,
            path=options.path,
            rule=options.rule,
            min_tokens=options.min_tokens,
            ignore_eos=options.ignore_eos,
        )
        print(choice.describe(), file=sys.stderr)
        if len(prompt_ids) < len(prompt):
            cut = f"its last {len(prompt_ids):,} of {len(prompt):,} tokens are read (--truncate)"
            print(f"prompt: {cut}", file=sys.stderr)
        how = f"temperature {options.temperature:g}, --seed {seed} gives it again"
        print(how if options.temperature else "greedy", file=sys.stderr)
        pieces = token_bytes(tokenizer, opened.config.model.vocab_size)
        writer = TextWriter(pieces, (), prompt_ids, text_starts(tokenizer, pieces))
        started, num_tokens, has_ended = time.monotonic(), 0, False
        shown = visible if sys.stdout.isatty() else str
        whole = []

        def say(piece: str) -> None:
            whole.append(piece)
            if not options.json:
                print(shown(piece), end="", flush=True)

        say(text)
        for token in tokens:
            if has_ended := token == edges.end and not options.ignore_eos:
                break
            num_tokens += 1
            say(writer.add(Token(token)).text)
        say(writer.end().text)
        said = {
            "path": choice.path,
            "text": "".join(whole),
            "tokens": num_tokens,
            "has_ended": has_ended,
            "seed": seed,
        }
        print(json.dumps(said) if options.json else "", flush=True)
        seconds = time.monotonic() - started
        if edges.end is None:
            end = "the model knows no end of a text"
        elif options.ignore_eos:
            end = "ends of the text were ignored"
        else:
            end = "the text ended by itself" if has_ended else "cut there: the text did not end"
        took = f"{num_tokens} tokens in {seconds:.1f} s, compilation included"
        print(f"{took}; {end}", file=sys.stderr)
    return 0


def _prompt_of(options: argparse.Namespace) -> str:
    """The prompt, from standard input if it is `-`. Raises `BadSetting`: it is not UTF-8."""
    from dipaco.errors import BadSetting

    if options.prompt == "-":
        given = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
    else:
        given = options.prompt.encode("utf-8", "surrogateescape")
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise BadSetting(name="--prompt", value=ascii(given), expected="UTF-8") from error
