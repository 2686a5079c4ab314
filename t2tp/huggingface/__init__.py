"""Converts checkpoints of Hugging Face's `transformers`, without that library.

A checkpoint is a directory with `config.json` and files of tensors (`*.safetensors`). Each
`model_types/*.toml` describes a type of model: it maps the entries of `config.json` to hparams
(`known_types`, `model_type`). A Python function maps the type's tensors to our variables, in named
dimensions (`tensor_map`). `model_directory` and `safetensors_file` read the files. `moving` moves
the values slice by slice.

In this package "their" and "theirs" refer to Hugging Face's side of a conversion, "our" and "ours"
to t2tp's side.
"""
