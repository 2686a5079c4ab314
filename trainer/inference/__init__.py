"""Decoding and export of a trained run.

`RunDecoder` decodes texts and splits with a checkpoint of a run, generates images, and scores
targets. `files` writes the results. `RunExporter` writes the model as a SavedModel or for LiteRT.
The SavedModel's functions are in `serving`. They decode any number of rows of tokens or text, in
chunks of a fixed size.
"""
