"""The language model's layers in PyTorch, and its initial values in their shapes."""

from __future__ import annotations

import language_model as lm
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, sizes: lm.Sizes):
        super().__init__()
        self.d_kv = sizes.d_kv
        d, f = sizes.d_model, sizes.d_ff
        self.norm_1, self.norm_2 = nn.RMSNorm(d, eps=1e-6), nn.RMSNorm(d, eps=1e-6)
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in "qkv")
        self.out = nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

    def forward(self, x):
        y = self.norm_1(x)
        # [batch, heads, length, d_kv]; tensor parallelism leaves each process its own heads.
        q, k, v = (
            layer(y).unflatten(-1, (-1, self.d_kv)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm_2(x))))


def initial_state(sizes: lm.Sizes) -> dict[str, torch.Tensor]:
    """Returns the initial weights by name, in PyTorch's shapes.

    `language_model` has inputs first, and a dimension of heads; a Linear has outputs first.
    """
    names = {"embedding": "embedding.weight", "norm": "norm.weight", "positions": "positions"}
    state = {}
    for name, value in lm.initial_values(sizes).items():
        layer, _, weight = name.rpartition("/")
        tensor = torch.from_numpy(value)
        if weight == "out":
            tensor = tensor.reshape(-1, sizes.d_model).T
        elif layer and not weight.startswith("norm"):
            tensor = tensor.reshape(len(tensor), -1).T
        state[f"blocks.{layer}.{weight}.weight" if layer else names[name]] = tensor
    return state | {"output.weight": state["embedding.weight"]}
