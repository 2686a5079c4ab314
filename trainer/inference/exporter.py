"""Exports the model of a run as a SavedModel, or for LiteRT, the runtime of small devices."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf
from absl import logging

from t2tp.atomic_file import write_bytes
from t2tp.decoding import DecodeOptions
from t2tp.decoding.options import GREEDY
from t2tp.layers.positions import context_length
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.model import EXAMPLE_INDEX, Classifier
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.program.program import Feature, Program
from t2tp.trainer.errors import UsageError
from t2tp.trainer.inference.run_decoder import with_eos
from t2tp.trainer.inference.saved_model import Signatures, Tensors, specs_of, step_of, traced
from t2tp.trainer.inference.serving import Step, TokenDecoding, decode_texts, in_chunks
from t2tp.trainer.model_fn import ModeKeys

if TYPE_CHECKING:
    from t2tp.trainer.run_spec import RunSpec

_LITERT_SUFFIX = ".tflite"
# The converter's message about an operation that LiteRT does not have.
_MISSING = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")


class RunExporter:
    """Exports a run's model: text to text, tokens to tokens, or features to classes."""

    def __init__(
        self,
        spec: RunSpec,
        options: DecodeOptions,
        max_input_length: int | None = None,
        activation_dtype: str | None = None,
    ) -> None:
        """Determines the kind of the model and creates its estimator.

        Args:
          spec: the run's settings; its mesh is ignored.
          options: decoding options of the exported model; `batch_size` is the number of rows to
            decode together.
          max_input_length: max tokens of inputs or prompt. Default: the model's context.
          activation_dtype: dtype of the activations. Default: as trained.

        Raises:
          UsageError: the model neither generates nor classifies, or the length is out of range.
        """
        problem = spec.problem
        self._spec = spec
        self._options = with_eos(options, problem, spec.data_dir)
        longest = context_length(spec.hparams)
        self._most = longest if max_input_length is None else max_input_length
        if not 0 < self._most <= longest:
            raise UsageError(
                f"--max_input_length={max_input_length} must be from 1 to the model's"
                f" context_length, {longest}"
            )
        self._writes = issubclass(spec.model_class, AutoregressiveModel)
        classifies = issubclass(spec.model_class, Classifier) and problem.writes_classes
        if not (self._writes or classifies):
            raise UsageError(
                f"the model {spec.model} on {problem.name} generates neither tokens nor classes:"
                " there is nothing to serve"
            )
        if self._writes and not problem.writes_tokens:
            raise UsageError(
                f"{problem.name} has neither text nor tokens: there is nothing to serve"
            )
        # Serving runs on one device, whatever the mesh of the training.
        values = {"mesh_shape": "", "layout": "", "exact_sums": 0}
        if activation_dtype:
            values["activation_dtype"] = activation_dtype
        config = replace(spec.config, xla=False)  # Not every server has XLA.
        self._estimator = replace(spec.with_hparams(values), config=config).make_estimator()

    def export(self, directory: str | PathLike[str]) -> Path:
        """Writes a SavedModel into `directory`, named after the Unix time, and returns its path.

        Servers load the latest export. Errors as for `Estimator.export_saved_model`.

        Raises:
          UsageError: see `Estimator.export_saved_model`, which raises other errors too.
        """
        path = _new(directory)
        if not self._writes:
            return self._estimator.export_saved_model(path, *self._classifying())
        tokens = self._tokens()
        return self._estimator.export_saved_model(
            path, tokens.features, self._writing(tokens), tokens.options
        )

    def export_litert(self, directory: str | PathLike[str], int8: bool = False) -> Path:
        """Writes a model file for LiteRT, named after the Unix time, and returns its path.

        The model computes `batch_size` rows at a time. An autoregressive model decodes greedily. It
        maps `ids`, int32 [rows, max_input_length], and `lengths`, int32 [rows], to `ids`, int32
        [rows, tokens], and `lengths`. A classifier maps its features to `classes`, int32 [rows],
        and `probabilities`, float32 [rows, classes].

        Raises:
          UsageError: the options are not greedy, or LiteRT lacks an operation; see `write_litert`.
        """
        path = _new(directory, _LITERT_SUFFIX)
        if not self._writes:
            features = self._class_features()
            program = self._estimator.build(ModeKeys.PREDICT, features)
            specs = specs_of(features)
            return write_litert(
                program, path, lambda step: lambda **given: step.run(given), int8, **specs
            )
        if self._options.method != GREEDY:
            raise UsageError("--format=litert decodes greedily, without beams or sampling")
        tokens = self._tokens()
        program = self._estimator.build(ModeKeys.PREDICT, tokens.features, tokens.options)
        rows = self._options.batch_size

        def signature(step: Step) -> Callable[..., Mapping[str, tf.Tensor]]:
            def decode(ids: tf.Tensor, lengths: tf.Tensor) -> Mapping[str, tf.Tensor]:
                keys = tf.zeros([rows], tf.int64)
                done = step.run(tokens.fed({"ids": ids, "lengths": lengths, "keys": keys}))
                return {"ids": done["symbols"][:, 0], "lengths": done["sizes"][:, 0]}

            return decode

        ids = tf.TensorSpec([rows, self._most], tf.int32)
        lengths = tf.TensorSpec([rows], tf.int32)
        return write_litert(program, path, signature, int8, ids=ids, lengths=lengths)

    def _tokens(self) -> TokenDecoding:
        return TokenDecoding(
            self._options,
            self._spec.problem.reads_inputs,
            self._most,
            context_length(self._spec.hparams),
            self._estimator.config.random_seed,
        )

    def _writing(self, tokens: TokenDecoding) -> Signatures:
        """Returns the signatures of an autoregressive model.

        The signature `tokens` maps tokens to tokens. The signature `serving_default` maps text to
        text if TensorFlow can run the problem's tokenizer, and equals `tokens` otherwise.
        """
        problem = self._spec.problem

        def signatures(step: Step) -> dict[str, tf.types.experimental.ConcreteFunction]:
            def serve_tokens(ids: tf.Tensor, lengths: tf.Tensor) -> Mapping[str, tf.Tensor]:
                return tokens(step, ids, lengths)

            ids = tf.TensorSpec([None, None], tf.int32, name="ids")
            lengths = tf.TensorSpec([None], tf.int32, name="lengths")
            functions = {"tokens": traced(serve_tokens, ids=ids, lengths=lengths)}
            codec = problem.codec(self._spec.data_dir)
            if not (isinstance(codec, Vocabulary) and codec.works_in_graph):
                if isinstance(codec, Vocabulary):
                    logging.info(
                        "the exported model maps tokens to tokens: TensorFlow cannot run a"
                        " tokenizer.json, so encode and decode texts outside of the model"
                    )
                return functions | {"serving_default": functions["tokens"]}

            def serve_text(inputs: tf.Tensor) -> Mapping[str, tf.Tensor]:
                return decode_texts(tokens, codec, step, inputs)

            spec = tf.TensorSpec([None], tf.string, name="inputs")
            return functions | {"serving_default": traced(serve_text, inputs=spec)}

        return signatures

    def _class_features(self) -> dict[str, Feature]:
        """Returns the features of a classifier, of `batch_size` rows."""
        batch = {"batch_size": self._options.batch_size, "batch_size_unit": "sequences_per_batch"}
        spec = self._spec.with_hparams(batch | {"max_length": self._most})
        inputs = spec.evaluation_inputs(self._spec.problem.splits[-1])
        omitted = ("targets", "weights", EXAMPLE_INDEX)
        return {name: f for name, f in inputs.features.items() if name not in omitted}

    def _classifying(self) -> tuple[dict[str, Feature], Signatures]:
        """Returns a classifier's features, and its signature, which returns all step outputs."""
        size, features = self._options.batch_size, self._class_features()
        specs = {
            name: tf.TensorSpec([None, *f.shape.to_integer_list[1:]], f.dtype, name=name)
            for name, f in features.items()
        }

        def signatures(step: Step) -> dict[str, tf.types.experimental.ConcreteFunction]:
            def serve(**rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
                return in_chunks(step.run, rows, size, step.outputs)

            return {"serving_default": traced(serve, **specs)}

        return features, signatures


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


def _new(directory: str | PathLike[str], suffix: str = "") -> Path:
    """Returns a new path in a directory, named after the Unix time."""
    stamp = int(time.time())
    while (path := Path(directory, f"{stamp}{suffix}")).exists():
        stamp += 1
    return path
