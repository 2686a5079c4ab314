"""Writes programs as files for LiteRT, the runtime of phones and small devices."""

import re
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from t2tp.atomic_file import write_bytes
from t2tp.program.program import Program
from t2tp.trainer.errors import UsageError
from t2tp.trainer.inference.saved_model import Step, Tensors, step_of, traced

SUFFIX = ".tflite"
# The converter's message about an operation that LiteRT does not have.
_MISSING = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")


def write_litert(
    program: Program,
    path: Path,
    signature: Callable[[Step], Callable[..., Tensors]],
    int8: bool = False,
    **inputs: tf.TensorSpec,
) -> Path:
    """Writes a single-device program and its variables, with only LiteRT's built-in operations.

    Args:
      program: the program, with restored variables.
      path: the new file, which is also returned.
      signature: maps the program's step to the function that the file contains.
      int8: whether to store weights of 1,024 values or more as int8, with a scale per channel.
        Activations are quantized while the model runs (LiteRT's dynamic range quantization).
      **inputs: inputs of the signature, with fixed shapes.

    Raises:
      UsageError: LiteRT does not have an operation of the program; the message names it.
      ValueError: the program has a mesh.
      OSError: the file cannot be written.
    """
    program = program.for_conversion()
    module = tf.Module()
    module.variables_held = [v for each in program.variables for v in each.slices]
    function = traced(signature(step_of(program)), **inputs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        contents = converter.convert()
    except Exception as error:  # The converter's errors have no common class.
        missing = sorted(set(_MISSING.findall(str(error))))
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        what = f"it does not have {', '.join(missing)}" if missing else reason
        raise UsageError(
            f"LiteRT cannot run this model: {what}; without --format=litert the export is a"
            " SavedModel, which TensorFlow runs"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, contents)
    return path
