"""Readers of samples: TensorFlow Datasets and users' files.

`tfds_source.py` opens TFDS datasets in the format ArrayRecord, for random access. `tfds_splits.py`
divides their splits. `user_files.py` finds files by patterns, and reads any line by its number.
`records.py` reads records from JSON lines, CSV, Parquet and Arrow. `source_changes.py` finds files
that have changed since the data were made.
"""
