"""The reference's scores of pairs of replies, for preference losses such as DPO.

The reference is the model at the run's start, before its first step: with adapters, the model
without them. It may also be another model (`--reference_from`). Each row is scored once, without
dropout, in the rows in which it is trained, so at the first step model and reference are equal to
the bit. The scores are in the run's directory, with what they were computed from:

    reference/train-packed-1024.npz    identity, reference_chosen, reference_rejected [rows, pairs]
"""

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp import mtf
from t2tp.atomic_file import write_bytes
from t2tp.building.mesh import Mesh
from t2tp.checkpoint import last_finished
from t2tp.models.model import EXAMPLE_INDEX
from t2tp.models.preferences import REFERENCES, WITH_REFERENCE
from t2tp.problems.data.batch_stream import EMPTY, ExampleSource, OnePassStream
from t2tp.problems.preferences import Preferences
from t2tp.problems.problem import Problem
from t2tp.program.program import Feature, Program
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.inputs.problem_inputs import one_pass_inputs
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from t2tp.trainer.other_run import OtherRun
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory
from t2tp.trainer.run_dir.run_checkpoints import size_guard
from t2tp.trainer.run_spec import RunSpec
from t2tp.typed_files import open_regular

_DIRECTORY = "reference"
_MAX_BYTES = 1 << 34

Scores = dict[str, np.ndarray]


@contextlib.contextmanager
def _arrays_of(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Opens a file of `np.savez`, whose arrays are neither pickled nor larger than the file."""
    with open_regular(path, _MAX_BYTES) as file:
        if any(each.compress_type for each in zipfile.ZipFile(file).infolist()):
            raise ValueError("its arrays are compressed")
        with np.load(file, allow_pickle=False) as arrays:
            yield arrays


def ignore_references(problem: Problem) -> None:
    """Lets a problem give scores of 0, for programs that only measure a step."""
    if isinstance(problem, Preferences):
        for split in problem.splits:
            for packed in (False, True):
                problem.set_references(split, packed, {})


class References:
    """The scores of a run's rows, which `set` passes to its problem."""

    def __init__(self, spec: RunSpec, estimator: Estimator) -> None:
        """Reads no file; `estimator` is the run's."""
        self._spec = spec
        self._estimator = estimator
        self._new: dict[Path, tuple[str, Scores]] = {}
        self._done: set[tuple[str, bool]] = set()

    def set(self, split: str, training: bool) -> None:
        """Reads or computes the scores of a split's rows; does nothing for other problems.

        `training` selects the rows as training reads them, which may be packed. The estimator has
        its initial or restored variables.

        Raises:
          UsageError: the run has trained, and the scores from its start are missing or belong to
            other data; or the file is damaged.
        """
        problem, hparams = self._spec.problem, self._spec.hparams
        if not isinstance(problem, Preferences):
            return
        packed = training and problem.options.arrangement == "packed"
        if (split, packed) in self._done:
            return
        self._done.add((split, packed))
        problem.set_references(split, packed, {})
        if hparams.values().get("preference_loss") not in WITH_REFERENCE:
            return
        length = hparams.max_length
        name = f"{split}-{'packed' if packed else 'padded'}-{length}"
        path = Path(self._spec.config.output_dir, _DIRECTORY, f"{name}.npz")
        identity = json.dumps({"data": self._spec.data_digest, "rows": name})
        scores = self._read(path, identity)
        data_dir = self._spec.data_dir
        source = (
            problem.train_examples(data_dir, length)
            if training
            else problem.examples(data_dir, split, length)
        )
        if scores is None:
            scores = self._compute(source, name)
            self._new[path] = (identity, scores)
        elif {x.shape for x in scores.values()} != {(len(source), *source.shape(REFERENCES[0]))}:
            raise UsageError(f"{path} is damaged: it has the scores of another number of rows")
        problem.set_references(split, packed, scores)

    def write(self) -> None:
        """Writes the scores that were computed; the caller is process 0 and holds the run's lock.

        Raises:
          UsageError: a file cannot be written.
        """
        for path, (identity, scores) in self._new.items():
            buffer = io.BytesIO()
            np.savez(buffer, identity=np.array(identity), **scores)  # type: ignore[arg-type]
            with as_usage_error(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, buffer.getvalue())
        self._new.clear()

    def _read(self, path: Path, identity: str) -> Scores | None:
        """Reads scores; returns None if they are to be computed."""
        cluster = self._estimator.connect()
        state = ""
        if cluster.is_main_process:
            trained = last_finished(checkpoint_directory(self._spec.config.output_dir)) is not None
            # Without a checkpoint, the run may have been started again with other initial values.
            is_known = trained and path.is_file()
            can_be_computed = not trained or self._spec.config.reference_from
            state = "there" if is_known else "new" if can_be_computed else "missing"
        state = cluster.process_broadcast(f"reference {path.name}", state)
        if state == "new":
            return None
        advice = "train in another output_dir, which computes them at its start"
        if state == "missing":
            raise UsageError(
                f"{path} is missing: it has the scores of the weights that the run began with;"
                f" put it back, give --reference_from, or {advice}"
            )
        try:
            with _arrays_of(path) as saved:
                if saved["identity"].item() != identity:
                    raise UsageError(
                        f"{path} has the scores of other data than those in"
                        f" {self._spec.data_dir}: name the data_dir that the run began with, or"
                        f" {advice}"
                    )
                return {name: np.asarray(saved[name], np.float32) for name in REFERENCES}
        except UsageError:
            raise
        except Exception as error:  # NumPy and zipfile raise errors of ten kinds.
            raise UsageError(f"{path} is damaged: {error}; put a copy back, or {advice}") from error

    def _program(self, features: Mapping[str, Feature]) -> Program:
        """Returns the program that scores rows with the weights of the reference."""
        spec, path = self._spec, self._spec.config.reference_from
        if not path:
            return self._estimator.build(ModeKeys.REFERENCE, features)
        other = OtherRun.open("reference_from", path)
        other.check_vocabulary(spec.problem.vocabulary(spec.data_dir))
        model_fn = model_fn_of(other.model_class, spec.problem.vocab_sizes(spec.data_dir), 0)
        hparams, guard = other.on_mesh_of(spec.hparams), size_guard(other.weights())

        def score(mesh: Mesh, parts: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
            with tf.compat.v1.variable_scope("", custom_getter=guard):
                return model_fn(mesh, parts, ModeKeys.REFERENCE, hparams).outputs()

        cluster = self._estimator.connect()
        program = Program(score, features, layout=spec.layout, cluster=cluster, xla=spec.config.xla)
        other.load(program.variables)
        return program

    def _compute(self, source: ExampleSource, name: str) -> Scores:
        size = sequences_per_batch(self._spec.hparams, self._spec.layout)
        stream = OnePassStream(source, size, EXAMPLE_INDEX)
        logging.info("scoring %d rows of %s with the reference", len(source), name)
        inputs = one_pass_inputs(self._spec.problem, stream)
        program = self._program(inputs.features)
        (pairs,) = source.shape(REFERENCES[0])
        scores = {each: np.zeros((len(source), pairs), np.float32) for each in REFERENCES}
        for step in range(len(stream)):
            batch = stream[step]
            outputs = program(dict(batch))  # type: ignore[arg-type]
            is_real = batch.examples != EMPTY
            for each in REFERENCES:
                scores[each][batch.examples[is_real]] = np.asarray(outputs[each])[is_real]
        return scores
