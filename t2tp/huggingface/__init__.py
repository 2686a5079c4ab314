"""Converts checkpoints of Hugging Face's `transformers`, without that library.

A checkpoint is a directory with `config.json` and files of tensors (`*.safetensors`). Each file of
`model_types/` describes a type of model: a table maps tensors to our variables in named dimensions
(`tensor_map`), and another maps `config.json` to hparams (`model_type`). `model_directory` and
`safetensors_file` read the files. `importing` and `exporting` move the values slice by slice.

"Their" and "theirs" mean Hugging Face's side of a conversion, "our" and "ours" mean t2tp's.
"""
