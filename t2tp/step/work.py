"""The work of one processor in a step: matmuls, memory-bound operations and collectives.

`sequence` and `slices` derive the work from a lowered program, and `compute_cost` and
`collective_cost` compute its seconds. Each operation declares its kind: see `cost` in
`t2tp.lowering.signature.Signature`.
"""

from dataclasses import dataclass

# Kinds that are bound by FLOPs.
PRODUCT, CONVOLUTION = "product", "convolution"
ATTENTION, ATTENTION_GRAD = "attention", "attention_grad"
COMPUTE_BOUND = (PRODUCT, CONVOLUTION, ATTENTION, ATTENTION_GRAD)

# Kinds that are bound by the memory's bandwidth.
ELEMENTWISE, COPY, RANDOM, SOFTMAX = "elementwise", "copy", "random", "softmax"
GATHER = "gather"
_PASSES = ("reduce", "norm", "batch_norm", GATHER, "cross_entropy", "update")
MEMORY_BOUND = (ELEMENTWISE, COPY, RANDOM, SOFTMAX, *_PASSES)
# The kinds that a compiler fuses with each other.
FUSED = (ELEMENTWISE, RANDOM)

# Kinds without work: a `VIEW` shares its input's memory, constants and features are `FREE`, and the
# work of a `LOOP` is counted for the operations inside it.
VIEW, FREE, LOOP = "view", "free", "loop"
KINDS = (*COMPUTE_BOUND, *MEMORY_BOUND, VIEW, FREE, LOOP)

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
PHASES = (FORWARD, BACKWARD, UPDATE)
# `Traffic.part` of a message between stages, which belongs to no entry of the schedule.
SEND = "send"


@dataclass(frozen=True)
class Work:
    """An operation on the slices of one processor.

    Attributes:
      kind: one of `COMPUTE_BOUND` or `MEMORY_BOUND`.
      times: number of executions in a step.
      dtype: dtype of the largest tensor.
      flops: floating-point operations of its matmuls.
      num_bytes: bytes of inputs and outputs.
      sizes: sizes of a matmul (batch, rows, columns, summed elements) or of attention (batch and
        heads, queries, keys, size of a head).
      causal: whether a causal mask hides half of attention's scores.
      dropout: whether attention drops weights.
      keeps_scores: whether attention saves its weights for the backward pass.
      operations: number of operations of the graph that are fused into this work.
      is_recomputed: whether it repeats a part of the forward pass.
      part: action and chunk, such as `F0` or `B0`, of the entries of a pipeline's schedule that
        execute it; empty outside of the schedule.
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
      kind: see `t2tp.mesh.collective_kinds`.
      times: number of executions in a step.
      num_bytes: bytes of a processor's input.
      of_state: whether it carries gradients or weights, and not activations.
      is_recomputed: whether it repeats a collective of the forward pass.
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
