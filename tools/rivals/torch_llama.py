"""The model and the optimiser of a path in PyTorch, written as PyTorch is written.

The rival of `bench_train.py`: equal in parameters and in mathematics to `dipaco/model` (Llama:
RMSNorm, half-split rotary, SwiGLU, no biases) and to `dipaco/inner/optimizer.py`. PyTorch's own
fast pieces do the work: fused attention, fused AdamW, autocast. A row is one document, so attention
is spared the mask of segments that ours has to look at.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """norm, queries, keys and values, rotary, causal attention, output."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(self, x, cosine, sine):
        rows, length, width = x.shape
        x = self.norm(x)
        q, k, v = (
            part(x).view(rows, length, self.num_heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(rows, length, width))


def rotate(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1).to(x.dtype)


class FeedForward(nn.Module):
    """norm, then down(silu(gate x) * up x)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        x = self.norm(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Llama(nn.Module):
    """Token ids [B, T] -> mean negative log-likelihood of the next token."""

    def __init__(self, vocabulary, width, num_layers, num_heads, hidden, length, theta=10_000.0):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.attention = nn.ModuleList(Attention(width, num_heads) for _ in range(num_layers))
        self.feed_forward = nn.ModuleList(FeedForward(width, hidden) for _ in range(num_layers))
        self.final_norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // num_heads
        frequencies = theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.arange(length)[:, None] * frequencies
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens):
        x = self.embed(tokens)
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = x + attention(x, self.cosine, self.sine)
            x = x + feed_forward(x)
        logits = self.head(self.final_norm(x))[:, :-1].float()
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def take(self, parts: Mapping[str, Mapping]) -> None:
        """Copies parameters of ours: kernels are stored the other way round."""

        def put(parameter, values):
            parameter.copy_(torch.from_numpy(values.copy()))

        put(self.embed.weight, parts["embed"]["table"])
        put(self.final_norm.weight, parts["final_norm"]["scale"])
        put(self.head.weight, parts["head"]["kernel"].T)
        for index, attention in enumerate(self.attention):
            block = parts[f"block_{index:02d}"]
            for name, layer in (
                ("attention", attention),
                ("feed_forward", self.feed_forward[index]),
            ):
                for kernel, values in block[name].items():
                    part = getattr(layer, kernel)
                    put(part.weight, values if kernel == "norm" else values.T)


class Trainer:
    """One optimiser step at a time: forward, backward, clipping at 1, AdamW with decay of
    matrices.
    """

    def __init__(self, model: Llama, *, compiled: bool, bfloat16: bool):
        self._parameters = list(model.parameters())
        groups = [
            {"params": [p for p in self._parameters if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in self._parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self._loss = torch.compile(model) if compiled else model
        self._bfloat16 = bfloat16

    def step(self, tokens: torch.Tensor, learning_rate: float) -> float:
        """The loss before the step."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bfloat16):
            loss = self._loss(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        return float(loss.detach())
