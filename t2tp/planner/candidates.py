"""The meshes, layouts and hparams that a search chooses from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2tp.hparam import HParams

# A dimension that tensor parallelism splits -> the hparam with its size.
_TENSOR_PARALLEL = {"heads": "num_heads", "d_ff": "d_ff", "vocab": ""}
_MOST_MICROBATCHES = 512


@dataclass(frozen=True)
class Candidate:
    """A way to train a model on some devices.

    Attributes:
      data: processors that split the batch.
      model: processors that split heads, hidden layers and vocabulary.
      expert: processors among those of `data` that split the experts, too.
      microbatches: per step.
      recompute: `none` or `layer`.
      zero_stage: 0 to 3.
      sequence_parallel: whether `model` also splits what lies between the blocks.
    """

    data: int
    model: int
    microbatches: int
    recompute: str
    zero_stage: int
    sequence_parallel: bool
    expert: int = 1

    @property
    def mesh_shape(self) -> str:
        """The mesh, with the axis that communicates most last."""
        axes = {"data": self.data // self.expert, "expert": self.expert, "model": self.model}
        return ";".join(f"{name}:{size}" for name, size in axes.items() if size > 1)

    @property
    def layout(self) -> str:
        """The rules."""
        batch = [name for name, size in self._of_batch() if size > 1]
        rules = [f"batch:{'+'.join(batch)}"] if batch else []
        if self.expert > 1:
            rules.append("experts:expert")
        if self.model > 1:
            rules += [f"{dim}:model" for dim in _TENSOR_PARALLEL]
            if self.sequence_parallel:
                rules.append("residual_length:model")
        return ";".join(rules)

    def _of_batch(self) -> list[tuple[str, int]]:
        return [("data", self.data // self.expert), ("expert", self.expert)]

    def hparams(self) -> dict[str, Any]:
        """Returns the hparams that differ between candidates, by name."""
        return {
            "mesh_shape": self.mesh_shape,
            "layout": self.layout,
            "microbatches": self.microbatches,
            "recompute": self.recompute,
            "zero_stage": self.zero_stage,
            "sequence_parallel": self.sequence_parallel,
        }

    def applied(self, hparams: HParams) -> HParams:
        """Returns hparams with those of the candidate."""
        changed = hparams.copy()
        for name, value in self.hparams().items():
            if name in changed:
                changed.set(name, value)
        return changed

    def flags(self) -> str:
        """Returns the flags of the trainer that select it."""
        values = self.hparams()
        mesh, layout = values.pop("mesh_shape"), values.pop("layout")
        text = ",".join(f"{name}={str(value).lower()}" for name, value in values.items())
        return f"--mesh_shape='{mesh}' --layout='{layout}' --hparams={text}"


def candidates(
    hparams: HParams,
    devices: int,
    rows: int,
    max_tensor_parallel: int,
    fixed: Mapping[str, Any],
) -> Iterator[Candidate]:
    """Yields the candidates for a number of devices.

    Args:
      hparams: of the model.
      devices: of the mesh.
      rows: of the global batch.
      max_tensor_parallel: max size of the axis `model`.
      fixed: hparams that are not to be chosen, by name.
    """
    heads = hparams.get("num_kv_heads") or hparams.get("num_heads") if "num_heads" in hparams else 1
    experts = hparams.get("num_experts") if "num_experts" in hparams else 1
    for model in _divisors(math.gcd(devices, heads)):
        data = devices // model
        if model > max_tensor_parallel or rows % data:
            continue
        options: dict[str, Sequence[Any]] = {
            "recompute": ("none", "layer") if "recompute" in hparams else ("none",),
            "zero_stage": (0, 1, 2, 3) if data > 1 else (0,),
            "sequence_parallel": _sequence_parallel(hparams, model),
            "microbatches": [
                n for n in _divisors(rows // data) if n & (n - 1) == 0 and n <= _MOST_MICROBATCHES
            ],
        }
        for name, value in fixed.items():
            if name in options:
                options[name] = [each for each in options[name] if each == value]
        for expert in _divisors(math.gcd(experts, data)) if experts > 1 else [1]:
            for microbatches in options["microbatches"]:
                for recompute in options["recompute"]:
                    for zero_stage in options["zero_stage"]:
                        for is_split in options["sequence_parallel"]:
                            yield Candidate(
                                data,
                                model,
                                microbatches,
                                recompute,
                                zero_stage,
                                is_split,
                                expert,
                            )


def _sequence_parallel(hparams: HParams, model: int) -> tuple[bool, ...]:
    is_possible = "sequence_parallel" in hparams and hparams.get("max_length") % model == 0
    return (False, True) if model > 1 and is_possible else (False,)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
