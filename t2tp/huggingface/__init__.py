"""Weights in directories of Hugging Face's `transformers`, read and written without it.

A directory has a `config.json` and files of tensors (`*.safetensors`). `model_types/` has a file
for each type of model: a table that maps their tensors to our variables in named dimensions
(`tensor_map`), and `config.json` to hparams (`model_type`). `model_directory` and
`safetensors_file` read and write the files; `importing` and `exporting` move the values, a slice of
a tensor at a time.
"""
