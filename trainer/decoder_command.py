"""What `t2tp_decoder` does once its flags are read."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from absl import flags as absl_flags
from absl import logging

from t2tp import checkpoint, registry
from t2tp.decoding import DecodeOptions
from t2tp.mesh.cluster import Cluster, has_gpu
from t2tp.mesh.layout import Layout
from t2tp.mesh.processes import Place
from t2tp.problems.images import ImageGenerationProblem
from t2tp.problems.manifest import DamagedDataError
from t2tp.problems.text_scores import score
from t2tp.problems.user_dir import import_user_dir
from t2tp.trainer import checkpointing, console, decode_files, plan, run_files, together
from t2tp.trainer.command import building
from t2tp.trainer.decoding import RunDecoder, check_writes
from t2tp.trainer.errors import LostError, UsageError, as_usage_error
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.model_fn import model_fn_of
from t2tp.trainer.plan import Plan
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.summaries import SummaryWriter

_SOURCES = ("decode_from_file", "decode_interactive", "split", "score_file")

_MANY_BATCHES = 8
# Of larger models the products take all the time, and XLA's are slower than TensorFlow's.
_MOST_WEIGHTS = 50_000_000

# Of a problem whose decoded text has no scores of its own.
_DEFAULT_SCORES = ("exact_match",)


def run(flags: absl_flags.FlagValues, place: Place | None = None) -> None:
    """Decodes, or scores, what the flags name.

    Args:
      flags: of the command line.
      place: which of several processes this is.

    Raises:
      UsageError: it cannot be done; nothing was written.
      LostError: another process is gone, or did not come.
    """
    if flags.t2t_usr_dir:
        with as_usage_error(ValueError, OSError):
            import_user_dir(flags.t2t_usr_dir)
    if flags.registry_help:
        print(registry.help_text())
        return
    console.use_plain_lines(place)
    with as_usage_error(ValueError, LookupError, OSError):
        _check(flags)
        made = plan.make(flags)
        options = DecodeOptions.parse(flags.decode_hparams)
        check_writes(made.settings["model"])
        path = flags.decode_from_file or flags.score_file
        lines = decode_files.read_lines(path) if path else []
        if path and not lines:
            raise UsageError(f"{path} is empty: there is nothing to decode or to score")
        if flags.decode_to_file or flags.decode_from_file:
            decode_files.check_can_be_written(flags.decode_to_file or flags.decode_from_file)
        if made.config.xla is None and pays_to_compile(flags, made.config, options, lines, place):
            made = replace(made, config=replace(made.config, xla=True))
            logging.info("XLA compiles what decodes (--noxla: nothing)")
    try:
        with as_usage_error(ValueError):
            cluster = together.connect_as(made.config)
        with together.telling_the_others(cluster), as_usage_error(DamagedDataError):
            if flags.generate_data:
                with as_usage_error(ValueError, LookupError, OSError):
                    together.prepare_data(cluster, made.problem, flags.data_dir, flags.tmp_dir)
            _Decoding(flags, made, options, lines, cluster).run()
    except together.OTHERS_FAULT as error:
        raise LostError(str(error)) from error


def _check(flags: absl_flags.FlagValues) -> None:
    """Refuses flags that do not go together."""
    given = [name for name in _SOURCES if flags[name].value]
    if len(given) != 1:
        said = " and ".join(f"--{name}" for name in given) or "none of them"
        raise UsageError(
            f"give one of {', '.join(f'--{name}' for name in _SOURCES)}: {said} is given"
        )
    for name in ("decode_reference", "decode_prefix_file"):
        if flags[name].value and not flags.decode_from_file:
            raise UsageError(f"--{name} is for --decode_from_file")
    if flags.decode_to_file and flags.decode_interactive:
        raise UsageError("--decode_interactive prints, and --decode_to_file is for files")
    if flags.output_dir:
        run_files.check_is_run(flags.output_dir)


def pays_to_compile(
    flags: absl_flags.FlagValues,
    config: RunConfig,
    options: DecodeOptions,
    lines: Sequence[str],
    place: Place | None,
) -> bool:
    """Whether decoding gains by being compiled: XLA can (see `Program`), and there is so much to
    decode that the seconds pay which that takes for each shape of a batch and each device.

    Decoding is a loop of many small steps: compiled it is up to twice as fast. (Devices that share
    nothing but a batch are as fast without, and so are large models.)
    """
    layout = Layout(config.mesh_shape, config.layout)
    if layout.size > 1:
        batch = layout.axis_of("batch")
        if place is not None or has_gpu() or (batch and batch.size == layout.size):
            return False
    if flags.split:
        rows = math.inf if options.num_samples < 0 else options.num_samples
    else:
        rows = len(lines) if flags.decode_from_file else 0
    is_much = rows >= _MANY_BATCHES * options.batch_size * layout.size
    return is_much and _num_weights(config) <= _MOST_WEIGHTS


def _num_weights(config: RunConfig) -> int:
    """How many numbers the run's model has learned, as far as its newest checkpoint says."""
    saved = checkpoint.latest(checkpointing.checkpoint_folder(config.output_dir))
    if saved is None:
        return 0
    shapes = saved.shapes()
    return sum(
        math.prod(shapes[name]) for name in saved.metadata.get(checkpointing.TRAINABLE, shapes)
    )


class _Decoding:
    """One call of the program."""

    def __init__(
        self,
        flags: absl_flags.FlagValues,
        made: Plan,
        options: DecodeOptions,
        lines: list[str],
        cluster: Cluster,
    ) -> None:
        self._flags = flags
        self._made = made
        self._problem = made.problem
        self._leads = cluster.leads
        if isinstance(made.problem, ImageGenerationProblem):
            options = replace(options, eos_id=-1)
        if flags.decode_interactive:
            options = replace(options, batch_size=1)
        self._options = options
        self._lines = lines
        with as_usage_error(ValueError, OSError):
            made.check_same_data(flags.data_dir)
        with building(made.settings["model"]):
            model_fn = model_fn_of(
                registry.model(made.settings["model"]),
                made.problem.vocab_sizes(flags.data_dir),
                made.settings["train_steps"],
                options,
            )
            self._estimator = Estimator(model_fn, made.config, made.hparams)
            self._decoder = RunDecoder(
                self._estimator, made.problem, flags.data_dir, made.hparams, options
            )

    def run(self) -> None:
        """Does it."""
        flags = self._flags
        with as_usage_error(ValueError, LookupError, OSError):
            if flags.score_file:
                self._score()
            elif flags.decode_interactive:
                self._interactive()
            elif flags.decode_from_file:
                self._file()
            elif isinstance(self._problem, ImageGenerationProblem):
                self._pictures(self._problem.levels)
            else:
                self._split()

    def _file(self) -> None:
        """From a file into a file."""
        flags, lines = self._flags, self._lines
        references = self._beside(flags.decode_reference)
        found = {}
        for number, decoded in self._decoder.texts(lines, self._beside(flags.decode_prefix_file)):
            found[number] = decoded
            if len(found) % 100 == 0:
                logging.info("decoded %d of %d", len(found), len(lines))
        path = flags.decode_to_file or f"{flags.decode_from_file}.{self._name}.decodes"
        if not self._leads:
            return
        in_order = [found[number] for number in range(len(lines))]
        decode_files.write_lines(path, [decode_files.line_of(d, self._options) for d in in_order])
        logging.info("%d lines in %s", len(lines), path)
        if references is not None:
            self._report("file", [decoded[0].text for decoded in in_order], references)

    def _beside(self, path: str | None) -> list[str] | None:
        """The lines of a file that has one for each line of the file to decode; None without one.

        Raises:
          UsageError: it has more or fewer.
        """
        if not path:
            return None
        lines = decode_files.read_lines(path)
        if len(lines) != len(self._lines):
            raise UsageError(
                f"{path} has {len(lines)} lines, and {self._flags.decode_from_file} has"
                f" {len(self._lines)}: they must have as many"
            )
        return lines

    def _interactive(self) -> None:
        """From the keyboard to the screen, until the end of input."""
        is_typed = sys.stdin.isatty()
        while True:
            if is_typed:
                print("> ", end="", flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            try:
                [(_, decoded)] = self._decoder.texts([line.rstrip("\r\n")])
            except ValueError as error:
                print(f"t2tp_decoder: {error}", file=sys.stderr)
                continue
            for each in decoded:
                fields = [each.text]
                if self._options.write_beam_scores:
                    fields.append(f"{each.score:.4f}")
                print("\t".join(fields), flush=True)

    def _split(self) -> None:
        """From a split of the problem into three files."""
        rows = self._decoder.split(self._flags.split, self._options.num_samples)
        if not self._leads:
            return
        for path in decode_files.write_rows(self._base, rows, self._options):
            logging.info("%d lines in %s", len(rows), path)
        outputs, targets = [row.outputs[0].text for row in rows], [row.targets for row in rows]
        self._report(self._flags.split, outputs, targets)

    def _pictures(self, levels: int) -> None:
        """Pictures that the model makes up, of so many shades, into PNG files."""
        count = self._options.num_samples
        if count < 1:
            raise UsageError(
                f"{self._problem.name} makes pictures: say how many, as in"
                " --decode_hparams=num_samples=16,temperature=1"
            )
        pictures = self._decoder.pictures(count)
        if self._leads:
            paths = decode_files.write_pictures(self._base, pictures, levels)
            logging.info("%d pictures, %s to %s", count, paths[0], paths[-1])

    def _score(self) -> None:
        """Log-probabilities of the lines of a file."""
        scores = [f"{each:.6f}" for each in self._decoder.scores(self._lines)]
        if not self._leads:
            return
        if self._flags.decode_to_file:
            decode_files.write_lines(self._flags.decode_to_file, scores)
            logging.info("%d lines in %s", len(scores), self._flags.decode_to_file)
        else:
            print("\n".join(scores))

    def _report(self, what: str, outputs: Sequence[str], references: Sequence[str]) -> None:
        """Prints how good decoded text is, and writes it for TensorBoard."""
        names = self._problem.decode_metric_names or _DEFAULT_SCORES
        figures = score(names, outputs, references)
        print("  ".join(f"{name} {figure:.2f}" for name, figure in figures.items()))
        folder = os.path.join(self._estimator.config.output_dir, f"decode_{what}")
        summaries = SummaryWriter(folder)
        summaries.write(self._estimator.steps_done, figures)
        summaries.close()

    @property
    def _name(self) -> str:
        """What decoded files are named after: the problem, the method and the step."""
        options = self._options
        how = {
            "greedy": "greedy",
            "sample": f"temperature{options.drawing_temperature:g}",
            "beam": f"beam{options.width}.alpha{options.alpha:g}",
        }[options.method]
        return f"{self._problem.name}.{how}.step{self._estimator.steps_done}"

    @property
    def _base(self) -> Path:
        """What the names of a split's files begin with."""
        if self._flags.decode_to_file:
            return Path(self._flags.decode_to_file)
        name = f"{self._flags.split}.{self._name}"
        return Path(self._estimator.config.output_dir, "decodes", name)
