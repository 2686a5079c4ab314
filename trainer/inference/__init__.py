"""Decoding and export of a trained run.

`RunDecoder` decodes texts and splits with a checkpoint of a run, generates images, and scores
targets. `files` writes the results. `DecodedSamples` decodes a few examples at each evaluation, for
TensorBoard. `RunExporter` writes the model as a SavedModel. The SavedModel's functions are in
`serving`. They decode any number of rows of tokens or text, in chunks of a fixed size.
"""
