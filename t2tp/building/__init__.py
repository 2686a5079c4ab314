"""What the builders of a graph share: the mesh, its `BuildContext`, and declared variables.

A layer is a function of tensors, so a model cannot pass its settings to every layer: LoRA adapters,
the rule of initial values, `transfer_from`. `Model.loss` and its siblings put the settings into the
mesh's `BuildContext` while they build, and layers read them there by `context_of(x.mesh)`.
"""
