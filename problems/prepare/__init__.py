"""Prepares a problem's data: encodes its samples once into shards on disk.

`prepare.py` makes the directory: vocabulary, shards (`shard_generation.py`, in several processes)
and manifest. The samples of a split are opened with random access (`open_samples.py`) and read in a
fixed shuffled order (`split_samples.py`). An interrupted attempt is resumed if its plan is
unchanged. Problems implement the interface in `preparable.py`.
"""
