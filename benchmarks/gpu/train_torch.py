"""GPT-2's training step in PyTorch: torch.compile, flash attention, fused AdamW."""

from __future__ import annotations

import peer

args = peer.arguments()

import gpt
import torch
from torch import nn
from torch.nn import functional

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")
sizes = gpt.MODELS[args.model]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        d = sizes.d_model
        self.norm_1 = nn.LayerNorm(d, gpt.NORM_EPSILON)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm_2 = nn.LayerNorm(d, gpt.NORM_EPSILON)
        self.up = nn.Linear(d, sizes.d_ff)
        self.down = nn.Linear(sizes.d_ff, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, d = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, sizes.heads, sizes.d_kv)
        q, k, v = (each.transpose(1, 2) for each in qkv.unbind(2))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, d))
        hidden = functional.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + self.down(hidden)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab, sizes.d_model)
        self.positions = nn.Embedding(args.length, sizes.d_model)
        self.blocks = nn.ModuleList(Block() for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.d_model, gpt.NORM_EPSILON)

    def forward(self, targets: torch.Tensor) -> torch.Tensor:
        inputs = functional.pad(targets[:, :-1], (1, 0))
        x = self.embedding(inputs) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.embedding.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load(model: Gpt) -> None:
    """Sets the weights to the initial values of all peers."""
    weights = {
        name: torch.from_numpy(gpt.initial_value(name, shape))
        for name, shape in gpt.weight_shapes(sizes, args.length).items()
    }
    d = sizes.d_model
    with torch.no_grad():
        model.embedding.weight.copy_(weights["embedding"])
        model.positions.weight.copy_(weights["positions"])
        for i, block in enumerate(model.blocks):
            qkv = [weights[f"{i}/{name}"].reshape(d, d).T for name in "qkv"]
            block.qkv.weight.copy_(torch.cat(qkv))
            block.out.weight.copy_(weights[f"{i}/out"].reshape(d, d).T)
            block.up.weight.copy_(weights[f"{i}/up"].T)
            block.down.weight.copy_(weights[f"{i}/down"].T)
            for layer in (block.qkv, block.out, block.up, block.down):
                layer.bias.zero_()


model = Gpt().to(device)
load(model)
matrices = [p for p in model.parameters() if p.dim() > 1]
vectors = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": gpt.WEIGHT_DECAY}, {"params": vectors}],
    lr=gpt.LEARNING_RATE,
    betas=(gpt.BETA1, gpt.BETA2),
    eps=gpt.EPSILON,
    weight_decay=0.0,
    fused=True,
)
targets = torch.from_numpy(gpt.targets(sizes, args.batch, args.length)).long().to(device)
compiled = torch.compile(model)


def step() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, torch.bfloat16):
        loss = compiled(targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), gpt.CLIP_NORM)
    optimizer.step()
    return loss.detach()


def peak_bytes() -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


version = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
peer.measure(step, args.steps, args.batch * args.length, peak_bytes, version=version)
