"""Lets tests import the tasks of `benchmarks/harness_tasks.py`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
