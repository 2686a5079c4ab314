"""Evaluates runs on tasks of lm-evaluation-harness."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2tp.layers.positions import context_length
from t2tp.models.autoregressive import FIRST_TOKEN
from t2tp.optional_import import optional_import
from t2tp.problems.vocab.special_tokens import named_tokens, token_ids
from t2tp.suggestions import nearest
from t2tp.trainer.errors import UsageError
from t2tp.trainer.hooks.summaries import SummaryWriter
from t2tp.trainer.inference.conversations import read_template
from t2tp.trainer.inference.run_decoder import RunDecoder, codec_for
from t2tp.trainer.run_dir import huggingface_files

if TYPE_CHECKING:
    from t2tp.evaluation import HarnessModel
    from t2tp.trainer.run_spec import RunSpec

# Subdirectory of a run for results and TensorBoard's events.
DIRECTORY = "eval_tasks"


class HarnessTasks:
    """Tasks of the harness, and the settings of their evaluation."""

    def __init__(
        self,
        names: Sequence[str],
        directory: str | None = None,
        *,
        num_fewshot: int | None = None,
        limit: int | None = None,
        apply_chat_template: bool = False,
        log_samples: bool = False,
    ) -> None:
        """Finds the tasks.

        Args:
          names: tasks or groups.
          directory: directory of further tasks, in the harness's YAML format.
          num_fewshot: number of examples in each prompt; None: each task's own number.
          limit: number of documents of each task; None: all.
          apply_chat_template: whether to write prompts with the run's chat template.
          log_samples: whether to write the requests and answers of each document.

        Raises:
          ModuleNotFoundError: the harness is not installed; the message says how to install it.
          UsageError: there is no such task.
        """
        with optional_import("tasks need lm-evaluation-harness: pip install -e '.[harness]'"):
            from lm_eval.tasks import TaskManager
        # Reading the harness's own tasks takes seconds. So they are read only if `directory` lacks
        # one of the tasks in `names`.
        self._manager = TaskManager(include_path=directory, include_defaults=not directory)
        if directory and not set(names) <= set(self._manager.all_subtasks):
            self._manager = TaskManager(include_path=directory)
        for name in names:
            if name not in self._manager.all_tasks:
                raise UsageError(f"task {name}: {nearest(name, self._manager.all_tasks, 'tasks')}")
        self._settings = {
            "tasks": list(names),
            "num_fewshot": num_fewshot,
            "limit": limit,
            "apply_chat_template": apply_chat_template,
            "log_samples": log_samples,
        }

    def run(self, spec: RunSpec, decoder: RunDecoder) -> dict[str, Any]:
        """Evaluates the tasks with a decoder of the run; all processes return the same results.

        Returns:
          The harness's results, with `samples` if `log_samples` is set.

        Raises:
          ValueError, OSError: a task does not fit the model, or its data are missing.
        """
        from lm_eval.evaluator import simple_evaluate

        model = harness_model(spec, decoder, bool(self._settings["apply_chat_template"]))
        return simple_evaluate(model, task_manager=self._manager, **self._settings)

    def write(self, results: dict[str, Any], output_dir: str, step: int) -> Path:
        """Prints the results of `run`, and writes them in the harness's format and for TensorBoard.

        Returns the directory of the written files.
        """
        from lm_eval.loggers import EvaluationTracker
        from lm_eval.utils import make_table

        directory = Path(output_dir, DIRECTORY)
        tracker = EvaluationTracker(str(directory / f"step-{step:08d}.json"))
        tracker.general_config_tracker.model_source = "t2tp"
        tracker.general_config_tracker.model_name = output_dir
        samples = results.pop("samples", {})
        tracker.save_results_aggregated(results, samples)
        for name, rows in samples.items():
            tracker.save_results_samples(name, rows)
        scalars = {
            f"{task}/{metric.removesuffix(',none')}": value
            for task, metrics in results["results"].items()
            for metric, value in metrics.items()
            if isinstance(value, float)
        }
        summaries = SummaryWriter(os.fspath(directory))
        summaries.write(step, scalars)
        summaries.close()
        print(make_table(results), flush=True)
        return directory


def harness_model(
    spec: RunSpec, decoder: RunDecoder, apply_chat_template: bool = False
) -> HarnessModel:
    """Wraps a language model's run as a model of the harness.

    Raises:
      FileNotFoundError: there is no chat template.
    """
    from t2tp.evaluation import HarnessModel

    kept = huggingface_files.directory_in(spec.config.output_dir)
    names, codec = named_tokens(kept), codec_for(spec.problem, spec.data_dir)
    prefix = spec.hparams.bos_token_id
    if names:  # A converted run's tokenizer defines the prefix token, as in `--model hf`.
        ids = token_ids(kept / "tokenizer.json")
        prefix = ids.get(names.get("bos_token") or names.get("eos_token") or "", prefix)
    template = None
    if apply_chat_template:
        template = read_template(spec.problem, spec.data_dir, spec.config.output_dir)
    decoder_with = functools.cache(decoder.with_options)  # A decoder caches its programs.
    return HarnessModel(
        decoder.scorer,
        lambda requests, options: decoder_with(options)(requests),
        codec,
        max_length=context_length(spec.hparams),
        prefix_token=prefix,
        template=template,
        reads_first_token=FIRST_TOKEN in spec.model_class.may_take,
    )
