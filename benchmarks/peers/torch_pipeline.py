"""The language model's training step in PyTorch, with its layers in stages of several processes.

`torch.distributed.pipelining` over gloo. The first stage has the embedding, and the last stage has
the output, which is tied to it; the two stages sum the gradients of both.
"""

from __future__ import annotations

import turn

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
}
turn.PARSER.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
args = turn.arguments()

import language_model as lm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import pipelining
from torch_model import Block, initial_state

turn.imported()
sizes = turn.sizes(args)


class Stage(nn.Module):
    """Some layers; the first stage also has the embedding, and the last stage the output."""

    def __init__(self, layers: range):
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): Block(sizes) for i in layers})
        self.is_first, self.is_last = 0 in layers, sizes.layers - 1 in layers
        if self.is_first:
            self.embedding = nn.Embedding(sizes.vocab, sizes.d_model)
            self.positions = nn.Parameter(torch.empty(sizes.length, sizes.d_model))
        if self.is_last:
            self.norm = nn.RMSNorm(sizes.d_model, eps=1e-6)
            self.output = nn.Linear(sizes.d_model, sizes.vocab, bias=False)

    def forward(self, x):
        if self.is_first:
            x = self.embedding(F.pad(x[:, :-1], (1, 0))) + self.positions
        for block in self.blocks.values():
            x = block(x)
        return self.output(self.norm(x)) if self.is_last else x


def loss_fn(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


dist.init_process_group("gloo")
rank, last = dist.get_rank(), args.stages - 1
ends = dist.new_group([0, last])
parts = args.stages * args.chunks
each = sizes.layers // parts
state = initial_state(sizes)
modules, stages = [], []
for part in range(rank, parts, args.stages):
    module = Stage(range(part * each, (part + 1) * each))
    module.load_state_dict({name: state[name] for name in module.state_dict()})
    modules.append(module)
    stages.append(pipelining.PipelineStage(module, part, parts, torch.device("cpu")))
make = getattr(pipelining, SCHEDULES[args.schedule])
several = args.schedule in ("interleaved", "zero_bubble")
schedule = make(stages if several else stages[0], args.microbatches, loss_fn=loss_fn)

targets = torch.from_numpy(lm.targets(sizes)).long()
parameters = [p for module in modules for p in module.parameters()]
tied = [m.embedding.weight for m in modules if m.is_first]
copies = [m.output.weight for m in modules if m.is_last]
optimizer = torch.optim.Adam(
    parameters, lr=lm.LEARNING_RATE, betas=(lm.BETA1, lm.BETA2), eps=lm.EPSILON, fused=True
)


def clip_gradients() -> None:
    counted = [p.grad for p in parameters if all(p is not copy for copy in copies)]
    squared = nn.utils.get_total_norm(counted) ** 2
    dist.all_reduce(squared)
    nn.utils.clip_grads_with_norm_(parameters, lm.CLIP_NORM, squared.sqrt())


def step() -> float:
    losses: list[torch.Tensor] = []
    given = (targets,) if rank == 0 else ()
    if rank == last:
        schedule.step(*given, target=targets, losses=losses)
    else:
        schedule.step(*given)
    for weight in (*tied, *copies):
        dist.all_reduce(weight.grad, group=ends)
    clip_gradients()
    optimizer.step()
    optimizer.zero_grad()
    loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.broadcast(loss, last)
    return float(loss)


turn.take_turns(step, version=f"torch {torch.__version__}", threads=torch.get_num_threads())
