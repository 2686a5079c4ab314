"""`RunSpec`: a run's model, problem, hparams, data and number of steps."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from t2tp import problems, registry
from t2tp.argument_types import checked
from t2tp.hparam import HParams
from t2tp.hparam_limits import Limits
from t2tp.mesh.layout import Layout
from t2tp.models.model import Model
from t2tp.problems.problem import Problem
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.eval_config import EvalConfig
from t2tp.trainer.inputs.inputs import Inputs
from t2tp.trainer.inputs.problem_inputs import evaluation_inputs, training_inputs
from t2tp.trainer.model_fn import model_fn_of
from t2tp.trainer.other_run import OtherRun
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_dir import huggingface_files, run_files
from t2tp.trainer.run_dir.run_files import SavedRun


@checked
@dataclass(frozen=True)
class RunSpec:
    """Model, problem, data and steps of a run, checked against the run in the output directory.

    ```python
    hparams = registry.hparams("transformer_lm_tiny")
    hparams.parse("mesh_shape=data:2;model:2")
    config = RunConfig("/tmp/run")
    spec = RunSpec.resolve(
        "transformer_lm", "languagemodel_python_stdlib", hparams, config,
        data_dir="/tmp/data", train_steps=300,
    )
    ```

    Attributes:
      model: name of a registered model.
      problem_name: name of the problem; see `problems.find`.
      problem_options: the problem's options, as text.
      hparams: hyperparameters of model and training, with mesh and layout.
      config: other settings, such as directories and checkpoints.
      train_steps: number of training steps in total.
      evaluation: when the run is evaluated, and on which split.
      saved: settings of the run in `config.output_dir`; None for a new run.
      flags: other flags to save in the run's `run.yaml`.
      changes: one line per difference from the saved run.
    """

    model: str
    problem_name: str
    problem_options: str
    problem: Problem
    hparams: HParams
    config: RunConfig
    data_dir: str | PathLike[str]
    train_steps: Annotated[int, Limits(min=0)]
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    saved: SavedRun | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    changes: Sequence[str] = ()

    @classmethod
    @checked
    def resolve(
        cls,
        model: str,
        problem: str,
        hparams: HParams,
        config: RunConfig,
        *,
        data_dir: str | PathLike[str],
        train_steps: int,
        problem_options: str = "",
        evaluation: EvalConfig | None = None,
    ) -> RunSpec:
        """Looks up model and problem, and reads the run in `config.output_dir`.

        The arguments are the attributes of the same names, and `problem` is `problem_name`. The
        data need not be prepared yet.

        Raises:
          UnknownNameError: there is no such model or problem.
          OtherRunError: `config.output_dir` holds a run of another model or problem.
          RunFileError: `run.yaml` in that directory is damaged.
          ValueError: an option cannot be parsed, or `train_steps` is negative.
        """
        saved = run_files.read(config.output_dir)
        instance = find_problem(config.output_dir, saved, model, problem, problem_options)
        return cls(
            model,
            problem,
            problem_options,
            instance,
            hparams,
            config,
            data_dir,
            train_steps,
            evaluation or EvalConfig(),
            saved,
        )

    @functools.cached_property
    def layout(self) -> Layout:
        """The layout that the hparams define."""
        return Layout.from_hparams(self.hparams)

    def with_hparams(self, values: Mapping[str, Any]) -> RunSpec:
        """Returns the spec with these hparams; ignores values of unknown names."""
        return replace(self, hparams=self.hparams.with_values(values))

    @property
    def model_class(self) -> type[Model]:
        """The registered class of the model."""
        return registry.model(self.model)

    @functools.cached_property
    def data_digest(self) -> str:
        """The digest of the prepared data; see `Problem.digest`."""
        return self.problem.digest(self.data_dir)

    def check_same_data(self, checkpoint_path: str | None = None) -> None:
        """Checks that the run, or a checkpoint of a run, was trained on these data.

        With a wrong vocabulary of the right size, metrics and texts look plausible, so the user
        would not notice the error. A converted run that uses its tokenizer instead of data passes
        the check.

        Args:
          checkpoint_path: by default the path in the config.

        Raises:
          OtherRunError: the data differ.
          RunFileError, OSError: `run.yaml` cannot be read.
          FileNotFoundError, DamagedDataError: see `Problem.digest`.
        """
        output_dir, problem = self.config.output_dir, self.problem_name
        if huggingface_files.tokenizer_directory(output_dir) == Path(self.data_dir):
            return
        named = run_files.run_of(checkpoint_path or self.config.checkpoint_path)
        for run in filter(None, (Path(output_dir), named)):
            flags = run_files.read_flags(run)
            before = flags.get("data_digest")
            if before and flags.get("problem") == problem and before != self.data_digest:
                raise run_files.OtherRunError(
                    f"the data of {problem} in {self.data_dir} are not those that the run in {run}"
                    " was trained on: they were made again, from other texts or with other options;"
                    " name the data_dir that it was trained on, or, to train, another output_dir"
                )

    def training_inputs(self) -> Inputs:
        """Opens the training split; errors as for `inputs.problem_inputs.training_inputs`."""
        seed = self.config.random_seed
        return training_inputs(self.problem, self.data_dir, self.hparams, self.layout, seed)

    def evaluation_inputs(self, split: str) -> Inputs:
        """Opens a split; errors as for `inputs.problem_inputs.evaluation_inputs`."""
        return evaluation_inputs(self.problem, self.data_dir, self.hparams, self.layout, split)

    def make_estimator(self) -> Estimator:
        """Creates the run's `Estimator`; errors as for `Estimator`.

        Raises:
          FileNotFoundError: the data are not prepared; the message names the command to run.
        """
        vocab_sizes = self.problem.vocab_sizes(self.data_dir)
        vocabulary = functools.partial(self.problem.vocabulary, self.data_dir)
        teacher = None
        if self.config.teacher:
            teacher = OtherRun.open("teacher", self.config.teacher)
            teacher.check_vocabulary(vocabulary())
        taught_by = None if teacher is None else (teacher.model_class, teacher.hparams)
        model_fn = model_fn_of(self.model_class, vocab_sizes, self.train_steps, taught_by)
        return Estimator(model_fn, self.config, self.hparams, self.layout, vocabulary, teacher)


def find_problem(
    output_dir: str, saved: SavedRun | None, model: str, problem: str, options: str
) -> Problem:
    """Looks up the problem of a run and checks that `output_dir` holds no other run.

    Raises:
      UnknownNameError: there is no such model or problem.
      OtherRunError: `output_dir` holds a run of another model or problem.
      ValueError: the options cannot be parsed.
    """
    registry.model(model)
    instance = problems.find(problem, options)
    if saved is not None:
        run_files.check_same_run(output_dir, saved, model, problem)
    return instance
