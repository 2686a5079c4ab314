"""Another run that a training reads: the teacher of a distillation, or a reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from t2tp import registry
from t2tp.checkpoint.reading import RunWeights
from t2tp.checkpoint.restore import check_same_save
from t2tp.checkpoint.variables import CheckpointMismatchError, load
from t2tp.hparam import HParams
from t2tp.models.model import Model
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.program.variables import Variables
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.hparams_fit import completed
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_dir.find_checkpoint import find
from t2tp.trainer.run_dir.token_rows import TokenRows, rows_between

_CONFIG_FILE = "config.json"  # In a Hugging Face directory.


@dataclass(frozen=True)
class OtherRun:
    """A run's model and hparams, and the checkpoint to read.

    Attributes:
      flag: the flag that names the run, for messages.
      path: the run, or one of its checkpoints; see `find_checkpoint.find`.
      model_class: its model.
      hparams: its hparams.
    """

    flag: str
    path: str
    model_class: type[Model]
    hparams: HParams

    @classmethod
    def open(cls, flag: str, path: str) -> OtherRun:
        """Reads the settings of a run.

        Raises:
          UsageError: the path names no run, or the run has adapters.
        """
        directory = run_files.run_of(path)
        if directory is None:
            if (Path(path) / _CONFIG_FILE).is_file():
                raise UsageError(
                    f"--{flag}={path} is a Hugging Face directory: make a run of it with"
                    f" t2tp_convert --from_hf={path} --output_dir=RUN, and give --{flag}=RUN"
                )
            raise UsageError(f"--{flag}={path} is neither a run nor a checkpoint of a run")
        with as_usage_error(ValueError, LookupError, OSError):
            saved = run_files.read_run(str(directory))
            model = saved.flags.get("model") or ""
            hparams = completed(saved.hparams, model)
            run = cls(flag, path, registry.model(model), hparams)
        if hparams.values().get("lora_rank"):
            raise UsageError(
                f"--{flag}={path} has adapters: merge them into its weights with t2tp_convert"
                " --merge_lora, and convert the result with t2tp_convert --from_hf"
            )
        return run

    def on_mesh_of(self, hparams: HParams) -> HParams:
        """Returns the run's hparams with the mesh and the precision of another run."""
        changed = self.hparams.copy()
        for name in ("mesh_shape", "layout", "activation_dtype", "microbatches", "batch_size"):
            changed.set(name, hparams.get(name))
        return changed

    def check_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Checks that the run has the vocabulary of the data, token by token.

        Raises:
          UsageError: a token differs, or a vocabulary is unknown.
        """
        rows, reason = rows_between(self.path, vocabulary)
        if rows is None or not rows.are_same:
            why = reason or ("there is no text" if rows is None else rows.describe())
            raise UsageError(
                f"--{self.flag}={self.path} must have the vocabulary of the data: {why}; prepare"
                f" the data with --problem_options=vocabulary_from=... of that run"
            )

    def load(self, variables: Variables, scope: str) -> None:
        """Loads variables, whose names begin with `scope/`, from the run's checkpoint.

        Tables may have another number of rows for padding of the vocabulary.

        Raises:
          UsageError: the checkpoint is missing or damaged, or lacks a variable.
        """
        with as_usage_error(ValueError, OSError):
            saved = RunWeights(find(self.path).path)
            check_same_save(saved, variables.cluster)
            shapes = saved.shapes()
            for variable in variables:
                name = variable.spec.name.removeprefix(f"{scope}/")
                shape = tuple(variable.spec.shape.to_integer_list)
                if shapes.get(name) == shape:
                    load(saved, name, variable)
                    continue
                rows = TokenRows.of_same(shape[0])
                if name not in shapes or not rows.fits(shapes[name], variable):
                    raise CheckpointMismatchError(
                        f"--{self.flag}={self.path}: {name} is {shapes.get(name, 'missing')} in the"
                        f" checkpoint, and {shape} in the model"
                    )
                rows.load(saved, name, variable)
