"""The language model's optimizer in JAX: Adam, with clipping by the global norm."""

from __future__ import annotations

import language_model as lm
import optax

optimizer = optax.chain(
    optax.clip_by_global_norm(lm.CLIP_NORM),
    optax.adam(lm.LEARNING_RATE, lm.BETA1, lm.BETA2, lm.EPSILON),
)
