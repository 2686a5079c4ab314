"""Readers of samples: TensorFlow Datasets and users' files.

`tfds_source.py` opens datasets of TFDS as ArrayRecord, which has random access, and
`tfds_splits.py` divides their splits. `user_files.py` finds files by patterns and reads their lines
by index, with an index of line ends on disk; `records.py` reads records of JSON lines, CSV, Parquet
and Arrow files.
"""
