"""The flags of `t2tp_trainer`. Other programs that load runs share some of the groups."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from t2tp.trainer import flag_groups
from t2tp.trainer.flag_groups import Group

_INTRO = """
Trains, evaluates and samples from a registered model on a registered problem:

  t2tp_trainer --problem=P --model=M --hparams_set=S --data_dir=D --output_dir=O
"""


def define() -> flags.FlagValues:
    """Defines the flags, with a holder of their own."""
    return flag_groups.define(GROUPS)


def parse(arguments: Sequence[str]) -> flags.FlagValues:
    """Reads a command line.

    Args:
      arguments: with the program's name first.

    Raises:
      UsageError: a flag is unknown or its value wrong, or an argument is no flag.
    """
    return flag_groups.parse(GROUPS, arguments)


def help_text() -> str:
    """What `--help` prints."""
    return flag_groups.help_text(_INTRO, GROUPS)


def answered(given: flags.FlagValues) -> bool:
    """Prints what `--help` and `--version` ask for; returns whether one of them was given."""
    return flag_groups.answered(given, _INTRO, GROUPS)


def _define_what(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "problem",
        None,
        "Name of a problem: a registered one, tfds:NAME or mixture:...",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "problem_options",
        None,
        "The problem's options, as in files=texts/**/*.txt,documents=lines.",
        flag_values=ours,
    )
    flags.DEFINE_string("model", None, "Name of a registered model.", flag_values=ours)
    flags.DEFINE_string(
        "hparams_set",
        None,
        "Name of a registered hparams set, or the hparams.json of a run.",
        flag_values=ours,
    )
    flags.DEFINE_multi_string(
        "hparams",
        [],
        "Changes to the set, as in learning_rate_constant=0.1,mesh_shape=data:2;model:4; of two"
        " changes the later wins",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "random_seed",
        None,
        "Of initial values, dropout, the order of the data and samples; 0 where none is given.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "t2t_usr_dir",
        None,
        "Folder of your own problems, models and hparams sets.",
        flag_values=ours,
    )
    flags.DEFINE_bool(
        "registry_help", False, "Print everything that is registered, and leave.", flag_values=ours
    )


def _define_where(ours: flags.FlagValues) -> None:
    flags.DEFINE_string("output_dir", None, "Folder of the run.", flag_values=ours)
    flags.DEFINE_string("data_dir", None, "Folder of the problems' data.", flag_values=ours)
    flags.DEFINE_string(
        "tmp_dir", None, "Folder for downloads, with --generate_data.", flag_values=ours
    )
    flags.DEFINE_bool(
        "generate_data", False, "Make the problem's data if they are not there.", flag_values=ours
    )


def _define_schedule(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "schedule",
        "train_and_evaluate",
        "What to do: train, evaluate, evaluate_on_train_data, train_and_evaluate,"
        " continuous_train_and_eval (the same), continuous_eval, predict, or test.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "train_steps",
        None,
        "Steps of the whole run; 250000 where none is given.",
        flag_values=ours,
    )


def _define_watching(ours: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "log_step_count_steps", 100, "Steps from one line of the log to the next.", flag_values=ours
    )
    flags.DEFINE_string(
        "log_json",
        None,
        "File to which reports, evaluations and events are added as lines of JSON; -: stdout.",
        flag_values=ours,
    )
    flags.DEFINE_bool(
        "log_time", False, "Begin each line of the log with the time of day.", flag_values=ours
    )
    flags.DEFINE_string(
        "tracker",
        "",
        "Send scalars to wandb or mlflow too, as in wandb:PROJECT.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "histogram_steps",
        None,
        "Write histograms of all trainable variables for TensorBoard every so many steps.",
        lower_bound=1,
        flag_values=ours,
    )
    flags.DEFINE_string(
        "profile_steps",
        None,
        "FIRST:LAST, as in 100:105: steps to write a profile of, for TensorBoard.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "eval_samples",
        0,
        "Decode so many examples at each evaluation, for TensorBoard.",
        lower_bound=0,
        flag_values=ours,
    )
    flags.DEFINE_enum(
        "on_nonfinite",
        None,
        ["stop", "skip", "ignore"],
        "What to do at a step whose loss or gradients are infinite or NaN: stop (what happens where"
        " nothing is said), skip (short for --hparams=skip_nonfinite_steps=true), or ignore it.",
        flag_values=ours,
    )
    flags.DEFINE_float(
        "grace_seconds",
        None,
        "Leave at the latest so many seconds after SIGTERM or SIGINT, saved or not.",
        flag_values=ours,
    )


def _define_evaluation(ours: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "eval_steps", -1, "Batches of an evaluation; 0 or -1: all.", flag_values=ours
    )
    flags.DEFINE_integer(
        "local_eval_frequency",
        1000,
        "Steps from one evaluation to the next; 0: only one at the end.",
        flag_values=ours,
    )
    flags.DEFINE_bool(
        "eval_use_test_set",
        False,
        "Evaluate on the test split, not on the validation split.",
        flag_values=ours,
    )
    flags.DEFINE_float(
        "eval_timeout_mins",
        240.0,
        "With --schedule=continuous_eval: minutes to wait for the next checkpoint.",
        lower_bound=0.0,
        flag_values=ours,
    )
    flags.DEFINE_string(
        "eval_early_stopping_metric",
        "loss",
        "With --eval_early_stopping_steps: the metric that has to get better.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "eval_early_stopping_steps",
        None,
        "Stop when the metric has not got better for so many steps.",
        lower_bound=1,
        flag_values=ours,
    )
    flags.DEFINE_float(
        "eval_early_stopping_metric_delta",
        0.1,
        "By how much it has to get better in that time.",
        lower_bound=0.0,
        flag_values=ours,
    )
    flags.DEFINE_bool(
        "eval_early_stopping_metric_minimize",
        True,
        "Whether a smaller value of the metric is better.",
        flag_values=ours,
    )


def _define_checkpoints(ours: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "save_checkpoints_steps",
        None,
        "Steps from one checkpoint to the next; 1000 where neither this nor the next is given.",
        flag_values=ours,
    )
    flags.DEFINE_float(
        "save_checkpoints_secs",
        None,
        "Seconds from one checkpoint to the next, in place of steps.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "keep_checkpoint_max", 20, "How many of the newest checkpoints are kept.", flag_values=ours
    )
    flags.DEFINE_float(
        "keep_checkpoint_every_n_hours",
        None,
        "Keep besides the oldest checkpoint, and one every so many hours.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "keep_best_metric",
        "",
        "Keep besides the checkpoint that was evaluated best: max:METRIC or min:METRIC.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "Evaluate or predict with this checkpoint, or the newest of this run, not with the newest"
        " in output_dir.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "warm_start_from",
        "",
        "Begin with the values of a checkpoint, or of a run's newest, as long as output_dir has"
        " none: PATH or PATH:from=>to;from=>to, where the rules (regular expressions) turn names"
        " there into names here.",
        flag_values=ours,
    )


def _define_mesh(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "mesh_shape",
        None,
        "Short for --hparams=mesh_shape=..., e.g. data:2;model:4.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "layout",
        None,
        "Short for --hparams=layout=..., e.g. batch:data;d_ff:model.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "worker_gpu",
        None,
        "Short for --mesh_shape=data:N: the batch is split over N devices.",
        lower_bound=1,
        flag_values=ours,
    )
    flags.DEFINE_string(
        "precision",
        None,
        "Short for --hparams=activation_dtype=...: float32, bfloat16 or float16.",
        flag_values=ours,
    )
    flags.DEFINE_bool(
        "xla",
        None,
        "Let XLA compile the whole step, on a mesh of several devices only what changes nothing, on"
        " virtual CPUs of one process; --noxla: nothing. By default the engine chooses.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "intra_op_parallelism_threads",
        0,
        "Threads that one operation may use on the CPU; 0: TensorFlow chooses.",
        lower_bound=0,
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "inter_op_parallelism_threads",
        0,
        "Operations that may run at the same time; 0: TensorFlow chooses.",
        lower_bound=0,
        flag_values=ours,
    )


def _define_processes(ours: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "num_processes",
        None,
        "How many processes train together. This and the next two need not be given where"
        " TF_CONFIG, Slurm or t2tp_launch says it.",
        flag_values=ours,
    )
    flags.DEFINE_integer("process_id", None, "Number of this process, from 0.", flag_values=ours)
    flags.DEFINE_string(
        "coordinator",
        None,
        "host:port at which process 0 awaits the others, such as node7:8476.",
        flag_values=ours,
    )


def _define_hparams_help(ours: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "print_hparams",
        False,
        "Print the hparams that --hparams_set and --hparams make, or those of the run in"
        " output_dir, with what each may be and means, and leave.",
        flag_values=ours,
    )


def _define_search(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "hparams_range",
        None,
        "Name of a registered ranged set, from which --trial draws values of hparams.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "trial",
        None,
        "Which point of --hparams_range to draw, from 0; always the same one.",
        lower_bound=0,
        flag_values=ours,
    )


def _define_debugging(ours: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "explain_layout",
        False,
        "Print how the training program lies on its mesh, draw it in layout.html in output_dir, and"
        " leave. Takes no devices: the mesh may be any size.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "dump_debug_info",
        None,
        "Folder into which TensorFlow writes what every operation does, for TensorBoard's Debugger"
        " V2. Slow, and large.",
        flag_values=ours,
    )


def _define_prediction(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "decode_prompt", "", "With --schedule=predict: text to continue.", flag_values=ours
    )
    flags.DEFINE_integer(
        "decode_length",
        128,
        "With --schedule=predict: tokens to add.",
        lower_bound=0,
        flag_values=ours,
    )
    flags.DEFINE_float(
        "decode_temperature",
        1.0,
        "With --schedule=predict: 0 takes the most probable token each time, 1 draws as the model"
        " says.",
        lower_bound=0.0,
        flag_values=ours,
    )


WHAT = Group("What to train", _define_what)
WHERE = Group("Folders", _define_where)
MESH = Group("Mesh, precision and devices", _define_mesh)
PROCESSES = Group("Several processes", _define_processes)

GROUPS = (
    WHAT,
    WHERE,
    Group("What to do", _define_schedule),
    Group("Watching and guarding", _define_watching),
    Group("Evaluation and early stopping", _define_evaluation),
    Group("Checkpoints", _define_checkpoints),
    MESH,
    PROCESSES,
    Group("Searching for hyperparameters", _define_search),
    Group("Looking up hyperparameters", _define_hparams_help),
    Group("Looking inside", _define_debugging),
    Group("Prediction", _define_prediction),
)
