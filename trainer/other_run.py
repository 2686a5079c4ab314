"""Another model that a training reads: the teacher of a distillation, or a reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from t2tp import registry
from t2tp.checkpoint.reading import Checkpoint, RunWeights
from t2tp.checkpoint.restore import check_same_save
from t2tp.checkpoint.variables import CheckpointMismatchError, load
from t2tp.hparam import HParams
from t2tp.huggingface.model_directory import CONFIG_FILE, ModelDirectory, read_config
from t2tp.huggingface.moving import DirectoryCheckpoint
from t2tp.models.transformer_lm import TransformerLm
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.program.variables import Variables
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.hparams_fit import completed
from t2tp.trainer.run_dir import huggingface_files, run_files
from t2tp.trainer.run_dir.find_checkpoint import find
from t2tp.trainer.run_dir.token_rows import TokenRows, rows_between


@dataclass(frozen=True)
class OtherRun:
    """The model and hparams of a run or a Hugging Face directory, and the weights to read.

    Attributes:
      flag: the flag that names the run, for messages.
      path: the run, or one of its checkpoints (see `find_checkpoint.find`), or the directory.
      model_class: its model.
      hparams: its hparams.
      directory: the Hugging Face directory; None: `path` is a run's.
    """

    flag: str
    path: str
    model_class: type[TransformerLm]
    hparams: HParams
    directory: ModelDirectory | None = None

    @classmethod
    def open(cls, flag: str, path: str) -> OtherRun:
        """Reads the settings of a run or of a Hugging Face directory, but no weights.

        Raises:
          UsageError: the path names neither, the model is no decoder-only language model, a file is
            damaged, or the run has adapters.
        """
        run, saved, directory = run_files.run_of(path), None, None
        with as_usage_error(ValueError, LookupError, OSError, ModuleNotFoundError):
            if huggingface_files.is_model_directory(path):
                model = read_config(Path(path))[1].model
            elif run is not None:
                saved = run_files.read_run(str(run))
                model = saved.flags.get("model") or ""
            else:
                raise UsageError(
                    f"--{flag}={path} is neither a run, nor a checkpoint of a run, nor a Hugging"
                    f" Face directory with {CONFIG_FILE}"
                )
            model_class = registry.model(model)
            if not issubclass(model_class, TransformerLm):
                raise UsageError(
                    f"--{flag}={path} has the model {model}: name a decoder-only language model,"
                    " such as a transformer_lm"
                )
            if saved is not None:
                hparams = completed(saved.hparams, model)
            else:
                directory = ModelDirectory.from_path(Path(path))
                hparams = directory.hparams()
                directory.check_tokenizer(hparams.vocab_size)
        if hparams.values().get("lora_rank"):
            raise UsageError(
                f"--{flag}={path} has adapters: merge them into its weights (t2tp_convert"
                f" --to_hf=DIR --merge_lora), and give --{flag}=DIR"
            )
        return cls(flag, path, model_class, hparams, directory)

    def weights(self) -> Checkpoint:
        """Opens the weights, averages if the run has them.

        Raises:
          UsageError: they are missing or damaged, or the files have other tensors than the model.
        """
        with as_usage_error(ValueError, OSError):
            if self.directory is None:
                return RunWeights(find(self.path).path)
            return DirectoryCheckpoint(self.directory, self.directory.variables(self.hparams))

    def on_mesh_of(self, hparams: HParams) -> HParams:
        """Returns the run's hparams with the mesh and the precision of another run."""
        names = ("mesh_shape", "layout", "activation_dtype", "microbatches", "batch_size")
        return self.hparams.with_values({name: hparams.get(name) for name in names})

    def check_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Checks that the run has the vocabulary of the data, token by token.

        Raises:
          UsageError: a token differs, or a vocabulary is unknown.
        """
        rows, reason = rows_between(self.path, vocabulary)
        if rows is None or not rows.are_same:
            where = self.path if self.directory else "... of that run"
            why = reason or ("there is no text" if rows is None else rows.describe())
            raise UsageError(
                f"--{self.flag}={self.path} must have the vocabulary of the data: {why}; prepare"
                f" the data with --problem_options=vocabulary_from={where}"
            )

    def load(self, variables: Variables, scope: str = "") -> None:
        """Loads variables, whose names begin with `scope/`, from the run's checkpoint.

        Tables may have another number of rows for padding of the vocabulary.

        Raises:
          UsageError: the checkpoint is missing or damaged, or lacks a variable.
        """
        with as_usage_error(ValueError, OSError):
            saved = self.weights()
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
