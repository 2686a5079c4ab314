"""Compares a run's bits per byte with compressors on the same text.

python examples/compare_with_compressors.py DATA_DIR RUN_DIR
"""

from __future__ import annotations

import gzip
import lzma
import sys
from pathlib import Path

from t2tp.problems.python_stdlib import LanguagemodelPythonStdlib
from t2tp.quiet import quiet_import

with quiet_import():
    import tensorflow  # noqa: F401  (TensorBoard imports it)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray


def last_bits_per_byte(run_dir: Path) -> tuple[int, float]:
    """Returns step and value of the run's last evaluation."""
    events = EventAccumulator(str(run_dir / "eval"))
    events.Reload()
    tag = next(tag for tag in events.Tags()["tensors"] if tag.endswith("bits_per_byte"))
    last = events.Tensors(tag)[-1]
    return last.step, float(make_ndarray(last.tensor_proto))


def main(data_dir: str, run_dir: str) -> None:
    """Prints a bar for each compressor, and one for the run."""
    problem = LanguagemodelPythonStdlib()
    text = problem.split_text(data_dir, "validation")
    step, model = last_bits_per_byte(Path(run_dir))
    rows = [
        ("gzip -9", 8 * len(gzip.compress(text, 9)) / len(text)),
        ("xz -9", 8 * len(lzma.compress(text, preset=9)) / len(text)),
        (f"t2tp, after {step:,} steps", model),
    ]
    print(f"bits per byte of the validation text ({len(text):,} bytes); shorter is better")
    longest = max(bits for _, bits in rows)
    for name, bits in rows:
        print(f"  {name:28} {bits:.3f}  {'█' * round(40 * bits / longest)}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
