"""Writes the model of a run as a SavedModel that plain TensorFlow loads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path

import tensorflow as tf

from t2tp import registry
from t2tp.decoding import DecodeOptions
from t2tp.hparam import HParams
from t2tp.mesh.program import Feature
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.classifier import Classifier
from t2tp.models.model import EXAMPLE_INDEX
from t2tp.problems.images import Image2ClassProblem
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.problem import Problem
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import PairProblem, Text2TextProblem
from t2tp.trainer.errors import UsageError
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.model_fn import model_fn_of
from t2tp.trainer.problem_inputs import evaluation_inputs
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.saved_model import Signatures, traced
from t2tp.trainer.serving import Step, TextDecoding, TokenDecoding, in_chunks


class RunExporter:
    """Exports the model of a run: text to text, symbols to symbols, or features to classes."""

    def __init__(
        self,
        model: str,
        problem: Problem,
        data_dir: str | PathLike[str],
        hparams: HParams,
        config: RunConfig,
        options: DecodeOptions,
        max_input_length: int | None = None,
    ) -> None:
        """Looks up what the model is.

        Args:
          model: name of a registered model.
          problem: what it was trained on.
          data_dir: where its data, the vocabulary among them, were prepared.
          hparams: the model's.
          config: of the run; its mesh is not used.
          options: how the exported model decodes; `batch_size` is how many rows it works on at a
            time.
          max_input_length: most symbols of inputs or of a prompt; by default the model's
            `max_length`.

        Raises:
          UsageError: the model neither writes nor names classes, or the length cannot be.
        """
        self._problem = problem
        self._data_dir = data_dir
        self._hparams = hparams
        self._options = options
        longest = hparams.max_length
        self._most = longest if max_input_length is None else max_input_length
        if not 0 < self._most <= longest:
            raise UsageError(
                f"--max_input_length={max_input_length} must be from 1 to the model's max_length,"
                f" {longest}"
            )
        model_class = registry.model(model)
        self._writes = issubclass(model_class, AutoregressiveModel)
        names_classes = isinstance(problem, (Text2ClassProblem, Image2ClassProblem))
        if not (self._writes or (issubclass(model_class, Classifier) and names_classes)):
            raise UsageError(
                f"the model {model} on {problem.name} neither writes symbol by symbol nor names"
                " classes: there is nothing to serve"
            )
        if self._writes and not isinstance(problem, (LanguageModelProblem, PairProblem)):
            raise UsageError(
                f"{problem.name} has neither text nor symbols: there is nothing to serve"
            )
        vocab_sizes = problem.vocab_sizes(data_dir)
        # Whatever mesh it was trained on: what is served runs on one device.
        on_one_device = hparams.copy()
        on_one_device.mesh_shape = ""
        self._estimator = Estimator(
            model_fn_of(model_class, vocab_sizes, train_steps=0, decode_options=options),
            # Not every server has XLA.
            replace(config, mesh_shape="", layout="", xla=False),
            on_one_device,
        )

    def export(self, folder: str | PathLike[str]) -> Path:
        """Writes a SavedModel into a folder of its own, named after the time.

        Args:
          folder: in which servers look for the newest.

        Returns:
          the SavedModel's folder.

        Raises:
          see `Estimator.export_saved_model`.
        """
        stamp = int(time.time())
        while (path := Path(folder, str(stamp))).exists():
            stamp += 1
        if not self._writes:
            return self._estimator.export_saved_model(path, *self._classifying())
        tokens = TokenDecoding(
            self._options,
            isinstance(self._problem, PairProblem),
            self._most,
            self._hparams.max_length,
            self._estimator.config.random_seed,
        )
        return self._estimator.export_saved_model(path, tokens.features, self._writing(tokens))

    def _writing(self, tokens: TokenDecoding) -> Signatures:
        """`tokens`, and where the problem has text `serving_default` from text to text."""
        problem = self._problem

        def signatures(step: Step) -> dict[str, tf.types.experimental.ConcreteFunction]:
            def serve_tokens(ids: tf.Tensor, lengths: tf.Tensor) -> Mapping[str, tf.Tensor]:
                return tokens(step, ids, lengths)

            ids = tf.TensorSpec([None, None], tf.int32, name="ids")
            lengths = tf.TensorSpec([None], tf.int32, name="lengths")
            made = {"tokens": traced(serve_tokens, ids=ids, lengths=lengths)}
            if not isinstance(problem, (LanguageModelProblem, Text2TextProblem)):
                return made | {"serving_default": made["tokens"]}
            text = TextDecoding(tokens, problem.vocabulary(self._data_dir))

            def serve_text(inputs: tf.Tensor) -> Mapping[str, tf.Tensor]:
                return text(step, inputs)

            spec = tf.TensorSpec([None], tf.string, name="inputs")
            return made | {"serving_default": traced(serve_text, inputs=spec)}

        return signatures

    def _classifying(self) -> tuple[dict[str, Feature], Signatures]:
        """From the problem's features to `classes` and `probabilities`."""
        size = self._options.batch_size
        hparams = self._hparams.copy()
        hparams.set("batch_size", size)
        hparams.set("batch_size_unit", "sequences_per_batch")
        hparams.set("max_length", self._most)
        inputs = evaluation_inputs(self._problem, self._data_dir, hparams, self._problem.splits[-1])
        unasked = ("targets", "weights", EXAMPLE_INDEX)
        features = {name: f for name, f in inputs.features.items() if name not in unasked}
        specs = {
            name: tf.TensorSpec([None, *f.shape.to_integer_list[1:]], f.dtype, name=name)
            for name, f in features.items()
        }

        def signatures(step: Step) -> dict[str, tf.types.experimental.ConcreteFunction]:
            def serve(**rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
                return in_chunks(step.run, rows, size, step.outputs)

            return {"serving_default": traced(serve, **specs)}

        return features, signatures
