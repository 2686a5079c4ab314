"""Decoding and export of a trained run.

`RunDecoder` decodes texts, splits and images with a checkpoint of a run, and scores targets;
`files` reads and writes its files. `DecodedSamples` decodes a few examples at each evaluation for
TensorBoard. `RunExporter` writes the model as a SavedModel. `serving` has the TensorFlow functions
inside it: they decode any number of rows of tokens or text, in chunks of a fixed size.
"""
