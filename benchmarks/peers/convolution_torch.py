"""A convolution block in PyTorch, channels last in memory. --compile compiles it."""

from __future__ import annotations

import turn

turn.PARSER.add_argument("--compile", action="store_true")
args = turn.arguments()

import torch
import torch.nn.functional as F
from layer_sizes import CONVOLUTIONS, EPSILON, LEARNING_RATE, MOMENTUM
from torch import nn

block = CONVOLUTIONS[args.size]
inputs, targets = (torch.from_numpy(x).permute(0, 3, 1, 2) for x in block.data())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        c = block.channels
        self.conv_1, self.conv_2 = (nn.Conv2d(c, c, 3, padding=1, bias=False) for _ in "12")
        self.norm_1, self.norm_2 = (nn.BatchNorm2d(c, EPSILON, 1 - MOMENTUM) for _ in "12")

    def forward(self, x):
        y = F.relu(self.norm_1(self.conv_1(x)))
        return F.relu(x + self.norm_2(self.conv_2(y)))


model = Block().to(memory_format=torch.channels_last)
with torch.no_grad():
    for name, value in block.initial_values().items():
        getattr(model, name).weight.copy_(torch.from_numpy(value).permute(3, 2, 0, 1))
compiled = torch.compile(model) if args.compile else model
optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)


def step() -> float:
    loss = F.mse_loss(compiled(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


turn.take_turns(step, version=f"torch {torch.__version__}", threads=torch.get_num_threads())
