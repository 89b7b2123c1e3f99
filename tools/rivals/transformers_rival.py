"""The rival of the serving benchmarks: `transformers.generate` on an exported path, float32, with
its cache, at whichever number of threads is the faster.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.rounds import seconds_of


class Theirs:
    """`transformers.generate` on an exported path."""

    def __init__(self, folder: Path):
        import torch
        import transformers
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def choose_threads(self, work: Callable[[], object]) -> int:
        """Stays with the number of threads, one or all, that does some work sooner."""
        by_threads = {}
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            self.torch.set_num_threads(threads)
            by_threads[threads] = min(seconds_of(work) for _ in range(3))
        best = min(by_threads, key=lambda threads: by_threads[threads])
        self.torch.set_num_threads(best)
        return best

    def generate(self, prompts: np.ndarray, new_tokens: int) -> np.ndarray:
        """Greedy continuations, int64 [B, new_tokens]."""
        ids = self.torch.from_numpy(prompts.astype(np.int64))
        with self.torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return out[:, prompts.shape[1] :].numpy()

    def text_of(self, prompt: np.ndarray, new_tokens: int) -> list[int]:
        """The greedy continuation of one prompt up to the end of its text, which is left out."""
        ids = self.torch.from_numpy(prompt.astype(np.int64)[None])
        with self.torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
            )
        made = out[0, len(prompt) :].tolist()
        end = self.model.generation_config.eos_token_id
        return made[: made.index(end)] if end in made else made

    def log_probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """float32 [tokens - 1]: of each token but the first, given those before it."""
        ids = self.torch.from_numpy(tokens.astype(np.int64)[None])
        with self.torch.inference_mode():
            logits = self.model(ids).logits[0, :-1]
            logprobs = self.torch.log_softmax(logits, dim=-1)
        return logprobs.gather(1, ids[0, 1:, None])[:, 0].numpy()

    def smallest_gap(self, prompt: np.ndarray, tokens: np.ndarray) -> float:
        """Between the two largest logits, wherever one of the tokens was chosen."""
        row = np.concatenate([prompt, tokens])[None, :-1].astype(np.int64)
        with self.torch.inference_mode():
            logits = self.model(self.torch.from_numpy(row)).logits[0, len(prompt) - 1 :]
        first_two = self.torch.topk(logits, 2).values
        return float((first_two[:, 0] - first_two[:, 1]).min())
