"""nanochat's model in PyTorch, of the size of `transformer_lm_tiny`, trained by its own recipe.

Written from the description of nanochat in July 2026: rotary positions (base 100,000), norms
without variables, also of the embeddings, queries and keys; a squared ReLU; separate weights of the
logits, whose soft cap is 15; scales of the residual stream and shares of the embeddings in each
layer; gated value embeddings in every second layer; a gated share of the previous token's
embedding; a share of the middle layer's output is subtracted at the end. Muon with batched
Newton-Schulz iterations updates matrices, AdamW the rest, each kind with its own rate. One factor
of all rates is searched for: the rate of matrices stands for it. The rates fall to a twentieth in
the last 65 % of the steps. Left out: windows of attention, weight decay, the schedule of the
momentum, NorMuon, Polar Express, and other refinements of Muon.
"""

from __future__ import annotations

import training
import turn

args = turn.arguments()

import torch
import torch.nn.functional as F
from torch import nn
from windows import Text

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
torch.manual_seed(0)
sizes = turn.sizes(args)
D, LAYERS, HEADS = sizes.d_model, sizes.layers, sizes.heads
MATRIX_RATE = 0.02
# Kind of variable -> rate, and decay rates of the moments.
ADAM = {
    "head": (0.008, (0.8, 0.96)),
    "embedding": (0.3, (0.8, 0.995)),
    "values": (0.15, (0.8, 0.995)),
    "scale": (0.005, (0.8, 0.95)),
    "share": (0.5, (0.96, 0.95)),
    "smear": (0.2, (0.8, 0.95)),
}
TABLES = ("head", "embedding", "values")
GATE_INPUTS, SMEAR_INPUTS, CAP, SHARPNESS, BASE = 12, 24, 15.0, 1.2, 100_000.0


def norm(x):
    return F.rms_norm(x, (x.shape[-1],))


def uniform(*shape, stddev):
    bound = 3**0.5 * stddev
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


class Nanochat(nn.Module):
    def __init__(self):
        super().__init__()
        near = D**-0.5
        self.embedding = nn.Parameter(0.8 * torch.randn(sizes.vocab, D))
        self.head = nn.Parameter(0.001 * torch.randn(sizes.vocab, D))
        at = torch.arange(LAYERS) / max(LAYERS - 1, 1)
        self.scale, self.share = nn.Parameter(1.15 - 0.1 * at), nn.Parameter(0.2 - 0.15 * at)
        self.smear, self.subtracted = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.tensor(0.2))
        self.smear_gate = nn.Parameter(0.02 * torch.rand(min(SMEAR_INPUTS, D)))
        has_values = [number % 2 == (LAYERS - 1) % 2 for number in range(LAYERS)]
        self.values = nn.ParameterDict(
            {str(n): uniform(sizes.vocab, D, stddev=near) for n in range(LAYERS) if has_values[n]}
        )
        self.blocks = nn.ModuleList()
        for number in range(LAYERS):
            block = nn.Module()
            block.q, block.k, block.v = (uniform(D, D, stddev=near) for _ in range(3))
            block.up = uniform(D, sizes.d_ff, stddev=0.4 * near)
            block.out = nn.Parameter(torch.zeros(D, D))
            block.down = nn.Parameter(torch.zeros(sizes.d_ff, D))
            if has_values[number]:
                block.gate = nn.Parameter(0.02 * torch.rand(min(GATE_INPUTS, D), HEADS))
            self.blocks.append(block)
        turns = BASE ** (-torch.arange(0, sizes.d_kv, 2) / sizes.d_kv)
        angles = torch.arange(sizes.length)[:, None] * turns
        self.cos, self.sin = angles.cos(), angles.sin()

    def rotated(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def forward(self, tokens):
        """Returns the mean loss of tokens [batch, length + 1], without the first of each row."""
        read = tokens[:, :-1]
        x = norm(self.embedding[read])
        gate = self.smear * torch.sigmoid(x[..., : len(self.smear_gate)] @ self.smear_gate)
        first = x + gate[..., None] * F.pad(x, (0, 0, 1, 0))[:, :-1]
        x, middle = first, first
        for number, block in enumerate(self.blocks):
            x = self.scale[number] * x + self.share[number] * first
            y = norm(x)
            # [batch, heads, length, d_kv]
            q, k, v = (
                (y @ w).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                for w in (block.q, block.k, block.v)
            )
            if str(number) in self.values:
                own = self.values[str(number)][read].unflatten(-1, (HEADS, -1)).transpose(1, 2)
                gates = 3 * torch.sigmoid(y[..., : len(block.gate)] @ block.gate)
                v = v + gates.transpose(1, 2)[..., None] * own
            q, k = (SHARPNESS * norm(self.rotated(t)) for t in (q, k))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + attended.transpose(1, 2).flatten(2) @ block.out
            x = x + F.relu(norm(x) @ block.up).square() @ block.down
            if number == LAYERS // 2:
                middle = x
        logits = norm(x - self.subtracted * middle) @ self.head.T
        logits = CAP * torch.tanh(logits / CAP)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def orthogonalized(x):
    """Applies five Newton-Schulz iterations (K. Jordan, 2024) to matrices [..., m, n], m <= n."""
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        squared = x @ x.mT
        x = 3.4445 * x + (-4.775 * squared + 2.0315 * squared @ squared) @ x
    return x


class Muon:
    """Muon with Nesterov momentum; matrices of the same shape are orthogonalized together."""

    def __init__(self, parameters, momentum=0.95):
        self._momentum, self._groups = momentum, {}
        for p in parameters:
            self._groups.setdefault(p.shape, []).append(p)
        self.reset()

    def reset(self):
        self._moments = {s: torch.zeros(len(g), *s) for s, g in self._groups.items()}

    @torch.no_grad()
    def step(self, rate):
        for shape, group in self._groups.items():
            gradients, moments = torch.stack([p.grad for p in group]), self._moments[shape]
            moments.lerp_(gradients, 1 - self._momentum)
            updates, is_tall = gradients.lerp(moments, self._momentum), shape[0] > shape[1]
            updates = orthogonalized(updates.mT if is_tall else updates)
            # Matrices are [inputs, outputs].
            updates = (updates.mT if is_tall else updates) * max(1, shape[1] / shape[0]) ** 0.5
            for p, update in zip(group, updates, strict=True):
                p.sub_(rate * update)


def kind_of(name):
    first = name.split(".")[0]
    return "smear" if first in ("smear_gate", "subtracted") else first


model = Nanochat()
initial = {name: value.clone() for name, value in model.state_dict().items()}
named = dict(model.named_parameters())
muon = Muon([p for name, p in named.items() if name.startswith("blocks.")])
groups = []
for kind, (own, betas) in ADAM.items():
    of_kind = [p for name, p in named.items() if kind_of(name) == kind]
    if kind in TABLES:
        own *= (D / 768) ** -0.5  # These rates were found for 768 features.
    groups.append({"params": of_kind, "betas": betas, "own": own})
adam = torch.optim.AdamW(groups, eps=1e-10, weight_decay=0.0, fused=True)
text = Text(args.data_dir, sizes)


def reset() -> None:
    model.load_state_dict(initial)
    adam.state.clear()
    muon.reset()


def step(number: int, rate: float) -> None:
    model(text.batch()).backward()
    for group in adam.param_groups:
        group["lr"] = group["own"] * rate / MATRIX_RATE
    adam.step()
    muon.step(rate)
    model.zero_grad()


def evaluate() -> float:
    return text.nats(model)


def warm_down(done: float) -> float:
    """Returns the factor of the rate, which falls to a twentieth in the last 65 % of the steps."""
    return min(1.0, 0.05 + 0.95 * (1 - done) / 0.65)


training.learn(reset, step, evaluate, warm_down, f"torch {torch.__version__}")
