"""A mixture of experts in PyTorch: one expert after another gathers its tokens by their indices.

An expert computes only its tokens, and no unused capacity.
"""

from __future__ import annotations

import turn

args = turn.arguments()

import torch
import torch.nn.functional as F
from layer_sizes import EXPERTS, LEARNING_RATE

layer = EXPERTS[args.size]
inputs, targets = (torch.from_numpy(x) for x in layer.data())
weights = {n: torch.from_numpy(v).requires_grad_() for n, v in layer.initial_values().items()}
optimizer = torch.optim.SGD(weights.values(), LEARNING_RATE)


def choices(probabilities):
    """Returns the experts [batch, length, 2], their gates, and which choices are not dropped."""
    gates, experts = probabilities.topk(2)
    gates = gates / gates.sum(-1, keepdim=True)
    chosen = F.one_hot(experts, layer.experts)  # [batch, length, 2, experts]
    before = chosen.cumsum(1) - chosen
    before[:, :, 1] += chosen[:, :, 0].sum(1, keepdim=True)
    return experts, gates, (before * chosen).sum(-1) < layer.capacity


def loss_fn():
    tokens = inputs.flatten(0, 1)
    experts, gates, has_room = choices(torch.softmax(inputs @ weights["router"], -1))
    experts = experts.masked_fill(~has_room, -1).flatten(0, 1)
    gates = gates.flatten(0, 1)
    y = torch.zeros_like(tokens)
    for expert in range(layer.experts):
        token, choice = torch.where(experts == expert)
        hidden = F.relu(tokens[token] @ weights["up"][expert])
        outputs = hidden @ weights["down"][expert]
        y = y.index_add(0, token, outputs * gates[token, choice, None])
    return F.mse_loss(y, targets.flatten(0, 1))


def step() -> float:
    loss = loss_fn()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


turn.take_turns(step, version=f"torch {torch.__version__}", threads=torch.get_num_threads())
