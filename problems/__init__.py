"""Registered problems: data, vocabulary, features, metrics.

A problem (`problem.py`) is a task and its data. A family, such as `Text2TextProblem` or
`Image2ClassProblem`, defines how a sample is encoded and which features a batch has. A registered
problem of the family opens the samples. `prepare/` encodes them once into shards on disk, and
`data/` reads batches from the shards by step. `vocab/` has the vocabularies, and `sources/` reads
TFDS datasets and users' files. `find` turns a name such as "translate_tsv:news", "tfds:mnist" or
"mixture:a=0.7,b=0.3" and its options into a problem.
"""

from t2tp.problems import (  # noqa: F401  (they register themselves)
    algorithmic,
    catalog,
    image_digits,
    instructions,
    preferences,
    python_stdlib,
    record_problems,
    text_files,
)
from t2tp.problems.find import find

__all__ = ["find"]
