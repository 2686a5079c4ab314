"""`t2tp_calibrate`: measures this machine and writes a cluster file for `t2tp_plan`."""

import shlex
from pathlib import Path

import tensorflow as tf
from absl import flags as absl_flags
from tqdm import tqdm

from t2tp.atomic_file import write_text
from t2tp.toml import toml_text
from t2tp.trainer.calibration.measure import Measured, steps
from t2tp.trainer.errors import FailedError, UsageError


def run(flags: absl_flags.FlagValues) -> None:
    """Measures one device and the links between devices, and writes the cluster file."""
    path = Path(flags.output)
    if path.suffix != ".toml":
        raise UsageError(f"--output={path}: the name of a cluster file ends in .toml")
    try:
        measured = Measured()
        for _ in tqdm(measured.run(), desc="measuring", total=steps(), mininterval=1.0):
            pass
        write_text(path, toml_text(measured.cluster_table()))
    except (tf.errors.OpError, OSError) as error:
        raise FailedError(f"this machine cannot be measured: {error}") from error
    print(f"{path}: written; t2tp_plan --cluster={shlex.quote(str(path))} reads it")
