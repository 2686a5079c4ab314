"""Steps whose time and memory `planning.py` predicts and measures.

No parameter of the planner is fitted to these steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from t2tp.planner import Request

_COMMON = "batch_size_unit=sequences_per_batch,clip_grad_norm=1.0"
_WIDTH = "d_model=256,d_ff=1024,num_heads=4,d_kv=64,max_length=128"
_SPLIT = "batch:data;heads:model;d_ff:model;vocab:model"

# Model -> registered name, hparams set, vocabulary or classes, and hparams of all of its cases.
MODELS = {
    "lm": ("transformer_lm", "transformer_lm_plain_tiny", 4096, f"{_WIDTH},num_hidden_layers=4"),
    "moe": (
        "transformer_moe",
        "transformer_moe_tiny",
        4096,
        f"{_WIDTH},num_hidden_layers=4,layout=batch:data;experts:data;heads:model;vocab:model",
    ),
    "encdec": ("transformer", "transformer_tiny", 4096, f"{_WIDTH},num_hidden_layers=3"),
    "resnet": ("mtf_resnet", "mtf_resnet_tiny", 10, "batch_size=32"),
    "vit": ("vit", "vit_tiny", 10, "d_model=256,d_ff=1024,num_heads=4,d_kv=64,num_hidden_layers=4"),
}


@dataclass(frozen=True)
class Case:
    """A training step that is predicted and measured.

    Attributes:
      model: a key of `MODELS`.
      mesh: mesh shape; "": one device.
      processes: number of processes on this machine, each with equally many devices of the mesh.
      hparams: hparams of this case, in addition to those of its model.
    """

    model: str
    mesh: str = ""
    processes: int = 1
    hparams: str = ""

    @property
    def name(self) -> str:
        """Name of the case in the table: model, mesh, processes and hparams."""
        processes = f"{self.processes} processes" if self.processes > 1 else ""
        parts = (self.model, self.mesh or "one device", processes, self.hparams)
        return ", ".join(part for part in parts if part)

    @property
    def request(self) -> Request:
        """The case as a request to the planner."""
        from t2tp import registry
        from t2tp.trainer.planning import request

        model, hparams_set, vocab_size, common = MODELS[self.model]
        hparams = registry.hparams(hparams_set)
        rows = "" if self.model == "resnet" else ",batch_size=16"
        layout = "" if "layout" in common else f",layout={_SPLIT}"
        hparams.parse(f"{_COMMON}{rows}{layout},{common}")
        hparams.parse(",".join(filter(None, (f"mesh_shape={self.mesh}", self.hparams))))
        return request(model, hparams, vocab_size, (32, 32, 3))


CASES = (
    Case("lm"),
    Case("lm", "data:2"),
    Case("lm", "model:2"),
    Case("lm", "data:4"),
    Case("lm", "data:2;model:2"),
    Case("lm", "data:2;model:4"),
    Case("lm", "data:2", 1, "recompute=layer"),
    Case("lm", "data:4", 1, "zero_stage=2,microbatches=2"),
    Case("lm", "data:4", 1, "zero_stage=3"),
    Case("moe"),
    Case("moe", "data:2"),
    Case("moe", "data:4"),
    Case("encdec"),
    Case("encdec", "data:2"),
    Case("encdec", "data:2;model:2"),
    Case("resnet"),
    Case("resnet", "data:2"),
    Case("resnet", "data:4"),
    Case("vit"),
    Case("vit", "data:2;model:2"),
)
