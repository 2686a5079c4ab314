"""Stored examples and the batches that are read from them.

A split is stored as shards (`shards.py`). An example consists of columns, such as the tokens of a
text. A shard has a file of values and a file of offsets for each column, and checksums.
`columns.py` maps the files, and `checked_file.py` verifies each block on first read. A manifest
(`manifest.py`) lists the files of a directory, which is written atomically
(`atomic_directory.py`). Examples are arranged into rows: padded, packed or bucketed
(`row_layout.py`). A plan (`row_plan.py`) lists the examples of each row; it is stored as an index
(`row_index.py`). Fields (`fields.py`, `pixels.py`) read the features of rows. A stream
(`batch_stream.py`) computes the batch of a step without state; `permutation.py` shuffles.
"""
