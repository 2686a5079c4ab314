"""The flags of `t2tp_trainer`. Other programs that load runs share some of the groups."""

from __future__ import annotations

from absl import flags

from t2tp.trainer.cli.flag_groups import Group


def _define_what(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "problem",
        None,
        "Name of a problem: a registered one, tfds:NAME or mixture:...",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "problem_options",
        None,
        "The problem's options, as in files=texts/**/*.txt,documents=lines.",
        flag_values=flag_values,
    )
    flags.DEFINE_string("model", None, "Name of a registered model.", flag_values=flag_values)
    flags.DEFINE_string(
        "hparams_set",
        None,
        "Name of a registered hparams set, or the hparams.json of a run.",
        flag_values=flag_values,
    )
    flags.DEFINE_multi_string(
        "hparams",
        [],
        "Changes to the set, as in learning_rate_constant=0.1,mesh_shape=data:2;model:4; a later"
        " change overrides an earlier one.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "random_seed",
        None,
        "Seed of initial values, dropout, the order of the data and sampling; by default 0.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "t2t_usr_dir",
        None,
        "Directory of your own problems, models and hparams sets.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "registry_help",
        False,
        "Print everything that is registered and exit.",
        flag_values=flag_values,
    )


def _define_where(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string("output_dir", None, "Directory of the run.", flag_values=flag_values)
    flags.DEFINE_string(
        "data_dir", None, "Directory of the problems' data.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "tmp_dir", None, "Directory for downloads, with --generate_data.", flag_values=flag_values
    )
    flags.DEFINE_bool(
        "generate_data",
        False,
        "Make the problem's data if they do not exist.",
        flag_values=flag_values,
    )


def _define_schedule(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "schedule",
        "train_and_evaluate",
        "What to do: train, evaluate, evaluate_on_train_data, train_and_evaluate,"
        " continuous_train_and_eval (the same), continuous_eval, predict, or test.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "train_steps",
        None,
        "Training steps in total; by default 250000.",
        flag_values=flag_values,
    )


def _define_watching(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "log_step_count_steps", 100, "Log every so many steps.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "log_json",
        None,
        "Append reports, evaluations and events to this file as lines of JSON; -: stdout.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "log_time",
        False,
        "Begin each line of the log with the time of day.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "tracker",
        "",
        "Send scalars to wandb or mlflow too, as in wandb:PROJECT.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "histogram_steps",
        None,
        "Write histograms of all trainable variables for TensorBoard every so many steps.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "check_replicas_every",
        0,
        "Compare the copies of variables that devices hold, every so many steps and before each"
        " checkpoint, and stop if they differ; 0: never.",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "profile_steps",
        None,
        "Profile these steps for TensorBoard: FIRST:LAST, as in 100:105.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "eval_samples",
        0,
        "Examples to decode at each evaluation, for TensorBoard.",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_enum(
        "on_nonfinite",
        None,
        ["stop", "skip", "ignore"],
        "What to do at a step whose loss or gradients are infinite or NaN: stop (default), skip"
        " (short for --hparams=skip_nonfinite_steps=true) or ignore.",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "grace_seconds",
        None,
        "Exit at most so many seconds after SIGTERM or SIGINT, saved or not.",
        flag_values=flag_values,
    )


def _define_evaluation(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "eval_steps", -1, "Batches per evaluation; 0 or -1: all.", flag_values=flag_values
    )
    flags.DEFINE_integer(
        "local_eval_frequency",
        1000,
        "Evaluate every so many steps; 0: only at the end.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "eval_use_test_set",
        False,
        "Evaluate on the test split instead of the validation split.",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "eval_timeout_mins",
        240.0,
        "With --schedule=continuous_eval: minutes to wait for the next checkpoint.",
        lower_bound=0.0,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "eval_early_stopping_metric",
        "loss",
        "With --eval_early_stopping_steps: the metric that must improve.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "eval_early_stopping_steps",
        None,
        "Stop when the metric has not improved for so many steps.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "eval_early_stopping_metric_delta",
        0.1,
        "By how much the metric must improve in that time.",
        lower_bound=0.0,
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "eval_early_stopping_metric_minimize",
        True,
        "Whether a smaller metric is better.",
        flag_values=flag_values,
    )


def _define_checkpoints(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "save_checkpoints_steps",
        None,
        "Save every so many steps; by default 1000, unless --save_checkpoints_secs is given.",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "save_checkpoints_secs",
        None,
        "Save every so many seconds instead.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "memory_checkpoint_every",
        0,
        "Also save every so many steps in the memory of the hosts, each process with a copy on"
        " another host, for a quick restart by t2tp_launch --max_restarts; 0: do not.",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "keep_checkpoint_max",
        20,
        "Keep so many of the latest checkpoints.",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "keep_checkpoint_every_n_hours",
        None,
        "Also keep the oldest checkpoint, and one every so many hours.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "keep_best_metric",
        "",
        "Also keep the checkpoint with the best metric: max:METRIC or min:METRIC.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "Evaluate or predict with this checkpoint, or the latest of this run; by default with the"
        " latest in output_dir.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "warm_start_from",
        "",
        "Initialize the variables from a checkpoint, or from a run's latest, if output_dir has"
        " none: PATH or PATH:from=>to;from=>to, where the rules (regular expressions) map the names"
        " there to the names here.",
        flag_values=flag_values,
    )


def _define_mesh(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "mesh_shape",
        None,
        "Short for --hparams=mesh_shape=..., e.g. data:2;model:4; auto: with --layout=auto, the"
        " best that is found for the devices that are there.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "layout",
        None,
        "Short for --hparams=layout=..., e.g. batch:data;d_ff:model, or auto.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "worker_gpu",
        None,
        "Short for --mesh_shape=data:N: the batch is split over N devices.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "precision",
        None,
        "Short for --hparams=activation_dtype=...: float32, bfloat16 or float16.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "xla",
        None,
        "Compile the step with XLA. On several devices: only programs without side effects, on"
        " virtual CPUs of one process. --noxla: compile nothing. By default the engine chooses.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "intra_op_parallelism_threads",
        0,
        "Max threads of one operation on the CPU; 0: TensorFlow chooses.",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "inter_op_parallelism_threads",
        0,
        "Max operations that run at the same time; 0: TensorFlow chooses.",
        lower_bound=0,
        flag_values=flag_values,
    )


def _define_processes(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "num_processes",
        None,
        "Processes of the run. This flag and the next two are not needed with TF_CONFIG, Slurm or"
        " t2tp_launch.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "process_id", None, "Index of this process, from 0.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "coordinator",
        None,
        "host:port at which process 0 waits for the others, as in node7:8476.",
        flag_values=flag_values,
    )


def _define_hparams_help(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "print_hparams",
        False,
        "Print the hparams that --hparams_set and --hparams make, or those of the run in"
        " output_dir, with the range and the meaning of each, and exit.",
        flag_values=flag_values,
    )


def _define_search(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "hparams_range",
        None,
        "Name of a registered ranged set, from which --trial samples hparams.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "trial",
        None,
        "Index of the point of --hparams_range, from 0; an index is always the same point.",
        lower_bound=0,
        flag_values=flag_values,
    )


def _define_debugging(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "explain_layout",
        False,
        "Print how the training program is laid out on its mesh, write the report layout.html into"
        " output_dir, and exit. Needs no devices: the mesh may be any size.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "check_layout",
        False,
        "Compare a training step on the mesh with one device, shrunk and in float64; print a table,"
        " name the first operation that differs, and exit. Runs on virtual CPU devices.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "dump_debug_info",
        None,
        "Directory into which TensorFlow writes every operation's results, for TensorBoard's"
        " Debugger V2. Slow, and large.",
        flag_values=flag_values,
    )


def _define_prediction(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "decode_prompt", "", "With --schedule=predict: text to continue.", flag_values=flag_values
    )
    flags.DEFINE_integer(
        "decode_length",
        128,
        "With --schedule=predict: tokens to add.",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "decode_temperature",
        1.0,
        "With --schedule=predict: sampling temperature; 0: greedy.",
        lower_bound=0.0,
        flag_values=flag_values,
    )


WHAT = Group("What to train", _define_what)
WHERE = Group("Directories", _define_where)
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
