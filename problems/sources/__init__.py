"""Readers of samples: TensorFlow Datasets and users' files.

`tfds_source.py` opens TFDS datasets in the format ArrayRecord, for random access. `tfds_splits.py`
divides their splits. `user_files.py` finds files by patterns, reads any line by its number, and
finds files that have changed since the data were made. `records.py` reads records from JSON lines,
CSV, Parquet and Arrow.
"""
