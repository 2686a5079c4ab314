"""A GPT-2 of the size of `transformer_lm_tiny` in PyTorch, trained as nanoGPT trains.

Pre-norm blocks without biases, GELU, learned positions, tied embeddings; normal initial values with
a standard deviation of 0.02, or less in projections to the residual stream; windows from random
places; AdamW (0.9, 0.95) with weight decay of matrices and embeddings, clipping at 1, cosine decay
to a tenth. With --optimizer=muon, torch's own Muon updates the matrices of blocks. It has its
default settings, but scales its updates to work with learning rates of Adam.
"""

from __future__ import annotations

import training
import turn

turn.PARSER.add_argument("--compile", action="store_true")
args = turn.arguments()

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn
from windows import Text

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
torch.manual_seed(0)
sizes = turn.sizes(args)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        d, linear = sizes.d_model, functools.partial(nn.Linear, bias=False)
        self.norm_1, self.norm_2 = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.qkv, self.out = linear(d, 3 * d), linear(d, d)
        self.up, self.down = linear(d, sizes.d_ff), linear(sizes.d_ff, d)

    def forward(self, x):
        # [batch, heads, length, d_kv]
        q, k, v = (
            t.unflatten(-1, (sizes.heads, sizes.d_kv)).transpose(1, 2)
            for t in self.qkv(self.norm_1(x)).split(sizes.d_model, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab, sizes.d_model)
        self.positions = nn.Embedding(sizes.length, sizes.d_model)
        self.blocks = nn.ModuleList(Block() for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.d_model, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                is_added = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, 0.0, 0.02 / math.sqrt(2 * sizes.layers if is_added else 1))

    def forward(self, tokens):
        """Returns the mean loss of tokens [batch, length + 1], without the first of each row."""
        x = self.embedding(tokens[:, :-1]) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


model = Gpt()
initial = {name: value.clone() for name, value in model.state_dict().items()}
compiled = torch.compile(model) if args.compile else model
named = dict(model.named_parameters())
is_muon = {n: args.optimizer == "muon" and n.startswith("blocks.") for n in named}
adam = [
    {"params": [p for n, p in named.items() if p.ndim == 2 and not is_muon[n]]},
    {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
]
optimizers = [torch.optim.AdamW(adam, betas=(0.9, 0.95), weight_decay=0.1, fused=True)]
if args.optimizer == "muon":
    muon = [p for n, p in named.items() if p.ndim == 2 and is_muon[n]]
    optimizers.append(torch.optim.Muon(muon, adjust_lr_fn="match_rms_adamw"))
text = Text(args.data_dir, sizes)


def reset() -> None:
    model.load_state_dict(initial)
    for optimizer in optimizers:
        optimizer.state.clear()


def step(number: int, rate: float) -> None:
    compiled(text.batch()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()


def evaluate() -> float:
    return text.nats(model)


training.learn(reset, step, evaluate, training.cosine, f"torch {torch.__version__}")
