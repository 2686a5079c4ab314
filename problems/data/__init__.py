"""Stored examples and the batches that are read from them.

A split is stored as shards (`shards.py`): for each column a file of values and a file of offsets,
with checksums. `columns.py` maps the files, and `checked_file.py` verifies each block on first
read. A manifest (`manifest.py`) lists the files of a directory. A directory is written atomically
(`atomic_directory.py`). Examples are arranged into rows (`row_layout.py`: padded, packed,
bucketed), and the plans of rows are stored as indexes (`row_index.py`). Fields (`fields.py`,
`pixels.py`) read the features of rows. A stream (`stream.py`) is a pure function from the step to a
batch; `permutation.py` shuffles it without state.
"""
