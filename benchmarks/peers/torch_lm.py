"""The language model's training step in PyTorch.

With --compile, torch.compile compiles the model. Several processes communicate over gloo:

* if only the batch is split (--data), by DistributedDataParallel;
* if only the weights are split (--model), by torch's own tensor parallelism;
* if both are split, by fully_shard over tensor parallelism, as in torch's tutorial. Weights that
  are gathered for the forward pass are kept for the backward pass.

--sharded=optimizer also shards the optimizer's state (ZeroRedundancyOptimizer over
DistributedDataParallel) over the processes that split the batch; --sharded=weights also shards the
weights (fully_shard, which gathers them twice). In bfloat16 (autocast), residuals and norms stay
float32, as is usual with torch; all other peers keep them in bfloat16.
"""

from __future__ import annotations

import turn

turn.PARSER.add_argument("--compile", action="store_true")
turn.PARSER.add_argument("--sharded", choices=("optimizer", "weights"))
args = turn.arguments()

import contextlib

import language_model as lm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch_model import Block, initial_state

turn.imported()
sizes = turn.sizes(args)
dtype = getattr(torch, args.dtype)


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab, sizes.d_model)
        self.positions = nn.Parameter(torch.empty(sizes.length, sizes.d_model))
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.d_model, eps=1e-6)
        self.output = nn.Linear(sizes.d_model, sizes.vocab, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, targets):
        x = self.embedding(F.pad(targets[:, :-1], (1, 0))) + self.positions
        for block in self.blocks:
            x = block(x)
        logits = self.output(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def in_processes(model: nn.Module) -> nn.Module:
    """Returns the model, split over the processes."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (args.data, args.model), mesh_dim_names=("data", "model"))
    if args.sharded == "weights":
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"], reshard_after_forward=True)
        fully_shard(model, mesh=mesh["data"], reshard_after_forward=True)
        return model
    if args.model == 1:
        return nn.parallel.DistributedDataParallel(model)
    columns, rows = ColwiseParallel(), RowwiseParallel()
    split = {"q": columns, "k": columns, "v": columns, "out": rows, "up": columns, "down": rows}
    for block in model.blocks:
        parallelize_module(block, mesh["model"], split)
    vocabulary = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh["model"], vocabulary)
    model.output.weight = model.embedding.weight
    if args.data > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"], reshard_after_forward=False)
        fully_shard(model, mesh=mesh["data"], reshard_after_forward=False)
    return model


model = LanguageModel()
model.load_state_dict(initial_state(sizes))
targets = torch.from_numpy(lm.targets(sizes)).long()
if args.processes > 1:
    model = in_processes(model)
    targets = targets.chunk(args.data)[dist.get_rank() // args.model]
# A fused operation of torch does not accept tensors on different device meshes, so each group of
# parameters is on one mesh.
by_split = {}
for parameter in model.parameters():
    by_split.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
groups = [{"params": group} for group in by_split.values()]
adam = {"lr": lm.LEARNING_RATE, "betas": (lm.BETA1, lm.BETA2), "eps": lm.EPSILON, "fused": True}
if args.sharded == "optimizer":
    optimizer = ZeroRedundancyOptimizer(
        groups, torch.optim.Adam, parameters_as_bucket_view=True, **adam
    )
else:
    optimizer = torch.optim.Adam(groups, **adam)
compiled = torch.compile(model) if args.compile else model


def clip_gradients() -> None:
    norms = [nn.utils.get_total_norm([p.grad for p in group]) for group in by_split.values()]
    norms = [n.full_tensor() if isinstance(n, DTensor) else n for n in norms]
    norm = torch.stack(norms).norm()
    for group in by_split.values():
        nn.utils.clip_grads_with_norm_(group, lm.CLIP_NORM, norm)


def step() -> float:
    is_split = args.model > 1
    with loss_parallel() if is_split else contextlib.nullcontext():
        with torch.autocast("cpu", dtype, enabled=args.dtype != "float32"):
            loss = compiled(targets)
        loss.backward()
    clip_gradients()
    optimizer.step()
    optimizer.zero_grad()
    loss = loss.detach()
    loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
    if args.data > 1:  # The mean of all processes.
        dist.all_reduce(loss)
        loss /= args.processes
    return float(loss)


turn.take_turns(step, version=f"torch {torch.__version__}", threads=torch.get_num_threads())
