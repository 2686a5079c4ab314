"""The flags of `t2tp_trainer`."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from t2tp.trainer.errors import as_usage_error


def define() -> flags.FlagValues:
    """Defines the flags, with a holder of their own: no other module's flags get among them."""
    ours = flags.FlagValues()
    _define_what(ours)
    _define_where(ours)
    _define_how(ours)
    _define_processes(ours)
    _define_prediction(ours)
    return ours


def parse(arguments: Sequence[str]) -> flags.FlagValues:
    """Reads a command line.

    Args:
      arguments: with the program's name first.

    Raises:
      UsageError: a flag is unknown or its value wrong, or an argument is no flag.
    """
    ours = define()
    with as_usage_error(flags.Error):
        rest = ours(list(arguments))[1:]
        if rest:
            raise flags.Error(f"{rest[0]!r} is no flag; flags are written --name=value")
    return ours


def help_text() -> str:
    """What `--help` prints."""
    return "\n".join(
        [
            "Trains, evaluates and samples from a registered model on a registered problem:",
            "",
            "  t2tp_trainer --problem=P --model=M --hparams_set=S --data_dir=D --output_dir=O",
            "",
            define().get_help(),
        ]
    )


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
    flags.DEFINE_string(
        "t2t_usr_dir",
        None,
        "Folder of your own problems, models and hparams sets.",
        flag_values=ours,
    )
    flags.DEFINE_string("model", None, "Name of a registered model.", flag_values=ours)
    flags.DEFINE_string("hparams_set", None, "Name of a registered hparams set.", flag_values=ours)
    flags.DEFINE_multi_string(
        "hparams",
        [],
        "Changes to the set, as in learning_rate_constant=0.1,mesh_shape=data:2;model:4. May be"
        " repeated; of two changes the later wins.",
        flag_values=ours,
    )
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
    flags.DEFINE_bool(
        "explain_layout",
        False,
        "Print how the training program lies on its mesh, draw it in layout.html in output_dir, and"
        " leave. Takes no devices: the mesh may be any size.",
        flag_values=ours,
    )
    flags.DEFINE_bool(
        "registry_help", False, "Print everything that is registered, and leave.", flag_values=ours
    )
    flags.DEFINE_bool("help", False, "Print this, and leave.", flag_values=ours)


def _define_where(ours: flags.FlagValues) -> None:
    flags.DEFINE_string("output_dir", None, "Folder of the run.", flag_values=ours)
    flags.DEFINE_string("data_dir", None, "Folder of the problems' data.", flag_values=ours)
    flags.DEFINE_string(
        "tmp_dir", None, "Folder for downloads, with --generate_data.", flag_values=ours
    )
    flags.DEFINE_bool(
        "generate_data", False, "Make the problem's data if they are not there.", flag_values=ours
    )


def _define_how(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "schedule",
        "train_and_evaluate",
        "What to do: train, evaluate, train_and_evaluate or predict.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "train_steps", None, "Steps of the whole run (default: 250000).", flag_values=ours
    )
    flags.DEFINE_integer(
        "eval_steps", -1, "Batches of an evaluation; 0 or -1: all.", flag_values=ours
    )
    flags.DEFINE_integer(
        "local_eval_frequency",
        1000,
        "Steps from one evaluation to the next; 0: only one at the end.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "save_checkpoints_steps", 1000, "Steps from one checkpoint to the next.", flag_values=ours
    )
    flags.DEFINE_integer(
        "keep_checkpoint_max", 20, "How many of the newest checkpoints are kept.", flag_values=ours
    )
    flags.DEFINE_integer(
        "log_step_count_steps", 100, "Steps from one line of the log to the next.", flag_values=ours
    )
    flags.DEFINE_integer(
        "random_seed",
        None,
        "Of initial values, dropout, the order of the data and samples (default: 0).",
        flag_values=ours,
    )
    flags.DEFINE_bool(
        "xla",
        None,
        "Let XLA compile the whole step, on a mesh of one device; --noxla: nothing. By default the"
        " engine chooses.",
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
