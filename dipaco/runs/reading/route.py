"""The path of a prompt, chosen as `dipaco` does. `dipaco export --all` puts this file beside the
paths. It needs no dipaco: only numpy, PyTorch and transformers (5 or newer).

  python route.py "And God said"            prints the path
  Router("exported").path("And God said")   a whole number; `path_of_chat` takes messages
"""

import functools
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


class Router:
    """The router of an exported folder. It computes in float32 and refuses changed files."""

    def __init__(self, folder: str | Path = Path(__file__).parent):
        self.folder = Path(folder)
        self.facts = json.loads((self.folder / "router.json").read_text(encoding="utf-8"))
        for file, digest in self.facts["digests"].items():
            if hashlib.sha256((self.folder / file).read_bytes()).hexdigest() != digest:
                raise SystemExit(f"{self.folder / file} has changed. Export the router again.")
        self.values: dict[str, Any] = load_file(self.folder / "router/router.safetensors")
        tokenizer_file = str(self.folder / "router/tokenizer.json")
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file).backend_tokenizer
        self.tokenizer.encode_special_tokens = True  # text that spells a special token is text
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.model = functools.lru_cache(maxsize=None)(self._load)

    def path(self, text: str) -> int:
        """The path of a prompt."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        start = self.facts["start"]
        ids = ids or [start]
        if ids == [None]:
            raise ValueError("the prompt is empty, and texts of this run have no start token")
        ids = ids[1:] if len(ids) > 1 and ids[0] == start else ids
        return self.path_of_ids(ids[: self.facts["prefix_tokens"]])

    def path_of_chat(self, messages: list[dict[str, Any]]) -> int:
        """The path of a chat: that of what the user asked first, and of no template's text."""
        texts = [(each.get("role"), _text_of(each.get("content"))) for each in messages]
        asked = [text for role, text in texts if role == "user" and text.strip()]
        return self.path(asked[0] if asked else "\n".join(text for _, text in texts if text))

    def path_of_ids(self, ids: list[int]) -> int:
        """The path of the first tokens of a text."""
        if self.facts["kind"] is None:
            return 0
        order = np.argsort(self._costs(ids), kind="stable")
        if self.facts["rule"] == "features":
            return int(order[0])
        order = order[: self.facts["num_compared"]]
        nats = np.array([self._nats(f"path_{path:04d}", ids) for path in order])
        nats[0] += self.facts["prior"]
        return int(order[nats.argmax()])

    def _costs(self, ids: list[int]) -> np.ndarray:
        """The cost of each path by the router, the lowest is best: float64 [P]."""
        values = self.values
        if self.facts["kind"] == "small_models":
            small = (f"router/path_{path:04d}" for path in range(self.facts["num_paths"]))
            return -np.array([self._nats(folder, ids) for folder in small], np.float32)
        model = self.model("router/base")
        with torch.no_grad():  # without the last norm: what the last block gives
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
        x = (hidden.sum(0) / len(ids)).numpy().astype(np.float64)
        x = (x - values["mean"]) / values["scale"]
        if values["has_unit_length"][0]:
            x = x / max(np.linalg.norm(x), 1e-12)
        if "rotation" in values:
            x = x @ values["rotation"].astype(np.float64)
        if "weight" in values:
            return values["price"] - x @ values["weight"].astype(np.float64)
        costs, first = np.zeros(1), 0
        for name in sorted(name for name in values if name.startswith("centre_")):
            centres = values[name].astype(np.float64)
            part = x[first : (first := first + centres.shape[1])]
            costs = (costs[:, None] + np.square(part - centres).sum(axis=1)).ravel()
        return costs + values["price"]

    def _nats(self, folder: str, ids: list[int]) -> float:
        """The log-likelihood of tokens under a model, but of the first."""
        with torch.no_grad():
            logits = self.model(folder)(torch.tensor([ids])).logits[0, :-1]
        found = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:]).long()[:, None])
        return float(found.double().sum())

    def _load(self, folder: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(self.folder / folder, dtype=torch.float32)
        if folder == "router/base":
            model.model.norm = torch.nn.Identity()
        return model.eval()


def _text_of(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


if __name__ == "__main__":
    print(Router().path(" ".join(sys.argv[1:])))
