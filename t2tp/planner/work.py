"""What one processor does in a step: matmuls, memory-bound operations and collectives.

These are read off a lowered program; `compute_cost` and `collective_cost` say what they cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Kinds of work that are bound by FLOPs.
PRODUCT, CONVOLUTION, ATTENTION, ATTENTION_GRAD = (
    "product",
    "convolution",
    "attention",
    "attention_grad",
)
COMPUTE_BOUND = (PRODUCT, CONVOLUTION, ATTENTION, ATTENTION_GRAD)

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
PHASES = (FORWARD, BACKWARD, UPDATE)
# The part of a message from stage to stage, which belongs to no entry of the schedule.
SEND = "send"


@dataclass(frozen=True)
class Work:
    """An operation, on the slices of one processor.

    Attributes:
      kind: `product`, `convolution`, `attention`, `attention_grad`, or the kind of a memory-bound
        operation.
      phase: of the step.
      times: how often a step does it.
      dtype: of its largest input.
      flops: of its matmuls.
      num_bytes: of its inputs and outputs.
      sizes: of a product: batch, rows, columns, summed elements; of attention: batch with heads,
        queries, keys, size of a head.
      causal: of attention: whether a causal mask hides half of the scores.
      dropout: of attention: whether weights are dropped.
      keeps_scores: of attention: whether the backward pass finds the weights stored.
      operations: of the graph that it consists of.
      is_recomputed: whether it repeats a part of the forward pass.
      part: of a pipeline: the entries of the schedule that it belongs to, `F0` or `B0`: action and
        chunk.
    """

    kind: str
    phase: str
    times: int
    dtype: str
    flops: float
    num_bytes: float
    sizes: tuple[int, ...] = ()
    causal: bool = False
    dropout: bool = False
    keeps_scores: bool = False
    operations: int = 1
    is_recomputed: bool = False
    part: str = ""


@dataclass(frozen=True)
class Traffic:
    """A collective of the program.

    Attributes:
      kind: see `t2tp.mesh.collectives.Collective`.
      axes: of the mesh.
      phase: of the step.
      times: how often a step runs it.
      num_bytes: that a processor puts in.
      of_state: whether it is of gradients or weights, and not of activations.
      is_recomputed: whether it repeats one of the forward pass.
      part: see `Work`.
    """

    kind: str
    axes: tuple[str, ...]
    phase: str
    times: int
    num_bytes: int
    of_state: bool
    is_recomputed: bool = False
    part: str = ""


# Purposes of memory, in the order in which they are shown.
PURPOSES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "kept": "activations kept",
    "temporary": "peak of temporaries",
    "gathered": "weights in use",
    "buffers": "communication buffers",
    "features": "features",
    "reserved": "driver and libraries",
}


@dataclass
class Memory:
    """Bytes of one processor by purpose, at one point of a step.

    Attributes:
      point: in words.
      layers: what each further layer adds here, of `Liveness.layer_bytes`.
      by_purpose: bytes.
    """

    point: str
    layers: tuple[str, ...]
    by_purpose: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """All bytes."""
        return sum(self.by_purpose.values())
