"""Layers: the building blocks of models, written in named dimensions.

A layer is an object that is configured once and applied to tensors. It names the dimensions it
works on (`d_model`, `heads`, `length`, ...) and keeps all others. It does not know the mesh: the
layout decides which dimensions are split, and the lowering inserts the collectives.

Variables are created on first use, by name in the current variable scope. The same name in the same
scope is the same variable.

Attention layers share one interface (`attention.AttentionLayer`). `Stack` runs them in one of three
forward passes (`passes`): full, prefill, or a decode step.
"""
