"""Twenty steps of `optax.contrib.muon` on the regression of tests/optim/regression.py.

    benchmarks/environments/jax/bin/python benchmarks/muon_optax.py tests/optim/muon_optax.json

Stores the losses and the weights for both scales of updates. optax corrects the bias of the
momentum and of the gradient by different powers of beta in the same step. PyTorch, t2tp and the
algorithm's author do not, so this correction is turned off here. For weights that are not matrices,
optax's Muon uses an Adam with Nesterov momentum; here `optax.adamw` updates them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from jax import numpy as jnp
from optax.contrib import muon

STEPS = 20
MOMENTUM = 0.95
SHAPES = {"w": (6, 12), "scale": (12,), "v": (12, 6)}
# PyTorch's name of a scale of updates -> optax's argument `consistent_rms`.
SCALES = {"match_rms_adamw": 0.2, "original": None}


def loss_of(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ weights["w"]) * weights["scale"]
    return ((hidden @ weights["v"] - x) ** 2).mean()


def trained(consistent_rms: float | None) -> dict[str, list]:
    batches = np.random.default_rng(0).normal(size=(STEPS, 8, 6)).astype(np.float32)
    weights = {
        name: jnp.sin(jnp.arange(np.prod(shape), dtype=jnp.float32)).reshape(shape)
        for name, shape in SHAPES.items()
    }
    optimizer = optax.partition(
        {
            "matrix": muon(0.01, beta=MOMENTUM, weight_decay=0.1, consistent_rms=consistent_rms),
            "other": optax.adamw(0.01, 0.9, 0.98, 1e-9, weight_decay=0.0),
        },
        {name: "matrix" if len(shape) > 1 else "other" for name, shape in SHAPES.items()},
    )
    state = optimizer.init(weights)
    losses = []
    for x in batches:
        loss, gradients = jax.value_and_grad(loss_of)(weights, jnp.asarray(x))
        updates, state = optimizer.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        losses.append(float(loss))
    return {"loss": losses} | {name: weight.tolist() for name, weight in weights.items()}


def main() -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    corrected = optax.tree.bias_correction

    def corrected_for_adam(moment: object, decay: float, count: object) -> object:
        return moment if decay == MOMENTUM else corrected(moment, decay, count)

    optax.tree.bias_correction = corrected_for_adam
    by_scale = {name: trained(consistent_rms) for name, consistent_rms in SCALES.items()}
    Path(sys.argv[1]).write_text(json.dumps(by_scale) + "\n", "utf-8")


if __name__ == "__main__":
    main()
