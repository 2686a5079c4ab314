"""Makes the modules of benchmarks/ importable, which is not a package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
