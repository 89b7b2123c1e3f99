"""lm-eval, unmodified, against a served run: do its requests get what `transformers` computes?

  python tools/check_lm_eval.py --run runs/quickstart
  python tools/check_lm_eval.py --run runs/quickstart --documents 100

Starts `dipaco serve`, exports every path, makes three tasks of the run's test documents
(multiple choice, rolling log-likelihood, generation), and runs `lm_eval run --model
local-completions` on them. Between the two stands a relay that keeps every request with its answer.
Then each answer is computed again by `transformers` on the exported path that answered: sums of
log-probabilities of each prompt, and greedy texts with their end. A text may differ from where the
two likeliest tokens are closer than rounding.

Prints lm-eval's own table, then the differences, then a line of JSON. Needs the extras `serve` and
`parity`.
"""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rivals.transformers_rival import Theirs
from support.command_line import parser_of
from support.http_thread import HttpThread
from support.serve_process import serving

from dipaco.runs.opening import reading
from dipaco.runs.reading.export import export_all

WORST_RELATIVE = 1e-3
TIE = 1e-4  # nats between the two likeliest tokens
CONTEXT, CHOICE, WRITTEN = 24, 12, 40  # tokens of a question, of an alternative, of a text
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {lines}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
{rest}
"""
TASKS = {
    "dipaco_choice": (
        "multiple_choice",
        'doc_to_choice: "{{choices}}"\ndoc_to_target: 0\nmetric_list: [{metric: acc}]',
    ),
    "dipaco_rolling": (
        "loglikelihood_rolling",
        'doc_to_target: "{{text}}"\nmetric_list: [{metric: word_perplexity},'
        " {metric: bits_per_byte}]",
    ),
    "dipaco_text": (
        "generate_until",
        'doc_to_target: "{{text}}"\nmetric_list: [{metric: exact_match}]\n'
        f"generation_kwargs: {{until: ['\\n\\n'], max_gen_toks: {WRITTEN}, do_sample: false}}",
    ),
}


class Exchange(NamedTuple):
    """A request of lm-eval and its answer."""

    asked: dict[str, Any]
    answered: dict[str, Any]


def relay(target: str, exchanges: list[Exchange]) -> type[http.server.BaseHTTPRequestHandler]:
    """A handler that passes POSTs on to `target` and keeps them."""

    class Relay(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that the base class calls
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = urllib.request.Request(
                target + self.path, body, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=300) as response:
                    status, answer = response.status, response.read()
                exchanges.append(Exchange(json.loads(body), json.loads(answer)))
            except urllib.error.HTTPError as error:
                status, answer = error.code, error.read()
                print(f"{status}: {answer.decode()}", file=sys.stderr)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *values: object) -> None:
            """No line for each request."""

    return Relay


def write_tasks(folder: Path, tokenizer, documents: list[np.ndarray]) -> None:
    """Tasks on texts: what follows a beginning, how likely a text is, and how it goes on."""
    lines = folder / "documents.jsonl"
    beginnings = [tokenizer.decode(tokens[:CONTEXT]) for tokens in documents]
    following = [tokenizer.decode(tokens[CONTEXT : CONTEXT + CHOICE]) for tokens in documents]
    with lines.open("w") as stream:
        for number, tokens in enumerate(documents):
            others = [following[(number + step) % len(documents)] for step in (1, 2, 3)]
            record = {
                "question": beginnings[number],
                "choices": [following[number], *others],
                "text": tokenizer.decode(tokens),
            }
            print(json.dumps(record), file=stream)
    for name, (kind, rest) in TASKS.items():
        file = folder / f"{name}.yaml"
        file.write_text(TASK.format(name=name, lines=lines, kind=kind, rest=rest))


def run_lm_eval(url: str, model: str, tokenizer: Path, length: int, tasks: Path) -> None:
    """Runs the published command and shows its table."""
    settings = (
        f"model={model},base_url={url}/v1/completions,num_concurrent=4,tokenizer={tokenizer},"
        f"tokenizer_backend=huggingface,max_length={length}"
    )
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", settings, "--tasks", ",".join(TASKS), "--include_path", str(tasks)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}
    ended = subprocess.run(
        command, env=os.environ | offline, capture_output=True, text=True, cwd=tasks
    )
    if ended.returncode:
        print(ended.stderr, file=sys.stderr)
        last_line = ended.stderr.strip().rpartition("\n")[2][:300]
        raise SystemExit(f"lm-eval ended with exit code {ended.returncode}: {last_line}")
    print(ended.stdout, flush=True)


def prompts_of(exchange: Exchange) -> list[list[int]]:
    """The prompts of a request. lm-eval sends one or several lists of token ids."""
    prompt = exchange.asked["prompt"]
    return [prompt] if isinstance(prompt[0], int) else prompt


class Compared(NamedTuple):
    """The outcome of comparing all exchanges."""

    sums: int  # one sum of log-probabilities a prompt
    worst_relative: float
    texts: int
    equal_texts: int
    tied_texts: int
    ended_texts: int  # texts that ended by themselves or at a stop string


def compare(exchanges: list[Exchange], theirs: dict[int, Theirs], tokenizer) -> Compared:
    """Computes every answer again."""
    differences, texts, ended = [], [], 0
    for exchange in exchanges:
        answers = sorted(exchange.answered["choices"], key=lambda choice: choice["index"])
        for prompt, choice in zip(prompts_of(exchange), answers, strict=True):
            rival = theirs[choice["path"]]
            if exchange.asked.get("echo"):
                ours = choice["logprobs"]["token_logprobs"][1 : len(prompt)]
                wanted = rival.log_probabilities(np.array(prompt))
                differences.append(abs(sum(ours) - wanted.sum()) / abs(wanted.sum()))
            else:
                texts.append(same_text(rival, tokenizer, exchange.asked, prompt, choice))
                ended += choice["finish_reason"] == "stop"
    return Compared(
        sums=len(differences),
        worst_relative=float(max(differences)),
        texts=len(texts),
        equal_texts=texts.count("equal"),
        tied_texts=texts.count("tie"),
        ended_texts=ended,
    )


def same_text(rival: Theirs, tokenizer, asked: dict, prompt: list[int], choice: dict) -> str:
    """`equal`, `tie` or `other`: our text beside the one of `transformers.generate`."""
    tokens = rival.text_of(np.array(prompt), asked["max_tokens"])
    text = tokenizer.decode(tokens)
    for stop in asked["stop"] or ():
        text = text.partition(stop)[0]
    if text == choice["text"]:
        return "equal"
    return "tie" if rival.smallest_gap(np.array(prompt), np.array(tokens)) < TIE else "other"


def compare_run(folder: Path, num_documents: int, url: str) -> Compared:
    """Lets lm-eval ask a served run, and computes every answer again.

    Args:
      folder: of the run.
      num_documents: of its test split.
      url: of its server.

    Raises:
      SystemExit: lm-eval failed.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with reading(folder) as run:
            corpus, config = run.corpus, run.config
            release = run.ledger.facts.release("modular", None)
            exported, _ = export_all(run, release, scratch / "exported")
            tokenizer = corpus.tokenizer()
            chosen = corpus.documents("test")[:num_documents]
            write_tasks(scratch, tokenizer, corpus.tokens(chosen))
        exchanges: list[Exchange] = []
        with HttpThread(relay(url, exchanges)) as between:
            run_lm_eval(between.url, config.name, exported[0], config.model.max_length, scratch)
        theirs = {path: Theirs(at) for path, at in exported.items()}
        return compare(exchanges, theirs, tokenizer)


def described(result: Compared) -> str:
    """A sentence."""
    return (
        f"{result.sums} log-likelihoods, the worst {result.worst_relative:.1e} from transformers; "
        f"{result.equal_texts} of {result.texts} texts equal, {result.tied_texts} more up to a tie;"
        f" {result.ended_texts} ended by themselves or at a stop"
    )


def is_same(result: Compared) -> bool:
    """True if the answers equal those of `transformers`, but for rounding."""
    parted = result.texts - result.equal_texts - result.tied_texts
    return not parted and result.sums > 0 and result.worst_relative <= WORST_RELATIVE


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=40, help="of the test split (40)")
    options = parser.parse_args()
    with serving(options.run) as (_, host, port):
        result = compare_run(options.run, options.documents, f"http://{host}:{port}")
    print(described(result))
    print(json.dumps(result._asdict()))
    if not is_same(result):
        raise SystemExit("the answers are not those of transformers")


if __name__ == "__main__":
    main()
