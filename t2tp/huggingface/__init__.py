"""Converts checkpoints of Hugging Face's `transformers`, without that library.

A checkpoint is a directory with `config.json` and files of tensors (`*.safetensors`). Each
`model_types/*.toml` describes a type of model: which entries of `config.json` are which hparams
(`known_types`, `model_type`). Functions list its tensors and our variables in named dimensions
(`tensor_map`). `model_directory` and `safetensors_file` read the files. `importing` and `exporting`
move the values slice by slice.

"Their" and "theirs" mean Hugging Face's side of a conversion, "our" and "ours" mean t2tp's.
"""
