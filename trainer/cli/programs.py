"""The programs: name, flags and module of each. Their entry points are at the end."""

from __future__ import annotations

from functools import partial

from t2tp.trainer.cli.flag_groups import Positional, groups
from t2tp.trainer.cli.run_program import ProgramSpec, run_program

_TRAINER_GROUPS = groups(
    *("what", "config", "where", "schedule", "watching", "evaluating", "checkpoints", "mesh"),
    *("execution", "processes", "trial", "hparams_help", "debugging", "prediction"),
)
_RUN = groups("what", "where", "mesh", "execution", "processes")

_REGISTRY = "t2tp.trainer.cli.answers:print_registry"

TRAINER = ProgramSpec(
    name="t2tp_trainer",
    intro="""
Trains, evaluates and samples from a registered model on a registered problem:

  t2tp_trainer --problem=P --model=M --hparams_set=S --data_dir=D --output_dir=O

or as a file says, such as the one in each run:

  t2tp_trainer --config=RUN/run.yaml --output_dir=O
""",
    groups=_TRAINER_GROUPS,
    body="t2tp.trainer.cli.train:run",
    required=("output_dir", "data_dir"),
    answers={
        "registry_help": "t2tp.trainer.cli.answers:print_registry_and_schedules",
        "print_hparams": "t2tp.trainer.cli.answers:print_hparams",
    },
)

EVAL = ProgramSpec(
    name="t2tp_eval",
    intro="""
Evaluates checkpoints of a run. Prints a line of JSON for each on stdout, and at the end a table on
stderr. The run's directory names model, problem and mesh; flags override them:

  t2tp_eval --output_dir=O --data_dir=D

or a language model on tasks of lm-evaluation-harness:

  t2tp_eval --output_dir=O --tasks=hellaswag,arc_easy
""",
    groups=(*groups("evaluation", "harness"), *_RUN),
    body="t2tp.trainer.cli.evaluate:run",
    required=("output_dir",),
    answers={"registry_help": _REGISTRY},
)

REPLAY = ProgramSpec(
    name="t2tp_replay",
    intro="""
Replays one training step of a run, on one device unless --mesh_shape is given. Prints a line of
JSON for each example of its batch (loss, gradient norm, text; the largest gradient first), and a
summary on stderr:

  t2tp_replay --output_dir=RUN --data_dir=D --step=1200
""",
    groups=(*groups("replay"), *_RUN),
    body="t2tp.trainer.cli.replay:run",
    required=("output_dir", "data_dir", "step"),
    answers={"registry_help": _REGISTRY},
)

DECODER = ProgramSpec(
    name="t2tp_decoder",
    intro="""
Decodes with the latest checkpoint of a run. The run's directory names model, problem and mesh;
flags override them:

  t2tp_decoder --output_dir=RUN --data_dir=D --decode_from_file=sources.txt
  t2tp_decoder --output_dir=RUN --data_dir=D --split=test --decode_hparams=beam_size=4,alpha=0.6
""",
    groups=(*groups("decoding"), *_RUN),
    body="t2tp.trainer.cli.decode:run",
    required=("output_dir",),
    answers={"registry_help": _REGISTRY},
)

EXPORTER = ProgramSpec(
    name="t2tp_exporter",
    intro="""
Writes the latest checkpoint of a run, trained on any mesh, as a SavedModel: a new directory in
OUTPUT_DIR/export, named after the time. Plain TensorFlow loads it.

  t2tp_exporter --output_dir=RUN --data_dir=D --decode_hparams=beam_size=4,alpha=0.6

or as a file for LiteRT, OUTPUT_DIR/export/TIME.tflite:

  t2tp_exporter --output_dir=RUN --data_dir=D --format=litert --int8
""",
    groups=(*groups("export", "what"), groups("where")[0].without("tmp_dir", "generate_data")),
    body="t2tp.trainer.cli.export:run",
    required=("output_dir",),
    answers={"registry_help": _REGISTRY},
)

DATAGEN = ProgramSpec(
    name="t2tp_datagen",
    intro="""
Makes the data of a problem:

  t2tp_datagen --problem=languagemodel_python_stdlib --data_dir=data

If the data exist, it only checks them. An interrupted run leaves nothing that looks complete, and
resumes after the finished shards when it is started again. --inspect shows existing data.
Exit code 2: the flags are wrong, and nothing was written. Exit code 1: the data could not be made.
Exit code 130: interrupted.
""",
    groups=groups("data", "data_directories", "generation", "beam", "inspection"),
    body="t2tp.trainer.cli.datagen:run",
    required=("problem", "data_dir"),
    imports_tensorflow=False,
)

LAUNCH = ProgramSpec(
    name="t2tp_launch",
    intro="""
Starts a command as several processes of one run, on this host:

  t2tp_launch -n 4 --max_restarts=10 t2tp_trainer --mesh_shape='data:2;model:2' ...

or this host's processes of a run on several hosts:

  t2tp_launch -n 1 --hosts='node[1-4]:8470' --host_id=0 t2tp_trainer ...

The exit code is the first failed process's.
""",
    groups=groups("launch", "restarts", "hosts"),
    body="t2tp.trainer.cli.launch:run",
    required=("num_processes",),
    positional=(Positional("COMMAND", "The command to start, with its flags.", takes_rest=True),),
    imports_tensorflow=False,
)

AVG_CHECKPOINTS = ProgramSpec(
    name="t2tp_avg_checkpoints",
    intro="""
Averages the trainable variables of checkpoints, and their moving averages (ema_decay), in float64.
The optimizer's variables and the statistics of batch norms come from the latest checkpoint. The
result is a checkpoint in the directory of a run, with the step of the latest one:

  t2tp_avg_checkpoints --output_dir=RUN --num_last_checkpoints=8 --output_path=AVERAGED
  t2tp_trainer --output_dir=AVERAGED --data_dir=D --schedule=evaluate
""",
    groups=groups("averaging"),
    body="t2tp.trainer.cli.average:run",
    required=("output_path",),
)

CONVERT = ProgramSpec(
    name="t2tp_convert",
    intro="""
Makes a run of a model in a directory of Hugging Face, or such a directory of a run:

  t2tp_convert --from_hf=gpt2 --output_dir=RUN
  t2tp_convert --to_hf=DIR --output_dir=RUN

An interrupted conversion leaves nothing that looks complete. Several processes share the work:
t2tp_launch -n 4 t2tp_convert ...
""",
    groups=groups("conversion", "processes"),
    body="t2tp.trainer.cli.convert:run",
    required=("output_dir",),
)

INSPECT_CHECKPOINT = ProgramSpec(
    name="t2tp_inspect_checkpoint",
    intro="""
Shows each variable of a checkpoint in named dimensions, its dtype and size, and the mesh and layout
with which it was saved; all files are checked. With a second checkpoint: the variables that differ,
in presence, shape, dtype or values, and exit code 1 if there are any:

  t2tp_inspect_checkpoint RUN
  t2tp_inspect_checkpoint RUN/checkpoints/step-00001000 RUN/checkpoints/step-00002000
""",
    groups=(),
    body="t2tp.trainer.cli.inspect:run",
    positional=(
        Positional("PATH", "A checkpoint's directory, or a run's for its latest checkpoint."),
        Positional("OTHER", "Another one, to compare the two.", is_optional=True),
    ),
)

BLEU = ProgramSpec(
    name="t2tp_bleu",
    intro="""
BLEU (sacrebleu, 0 to 100) of a text against a reference, line by line, cased and uncased:

  t2tp_bleu --translation=news.en.decoded --reference=news.en
  t2tp_bleu --translations_dir=decoded --reference=news.en

The second scores each file named NAME-STEP of a directory, and writes the scores to TensorBoard's
events.
""",
    groups=groups("bleu"),
    body="t2tp.trainer.cli.bleu:run",
)

TUNE = ProgramSpec(
    name="t2tp_tune",
    intro="""
Searches for good hparams: trains points of a ranged set, each in a directory of its own, and prints
a line for each, the best first. The flags after -- go to t2tp_trainer:

  t2tp_tune --hparams_range=basic1 --trials=8 --output_dir=search -- --problem=P --model=M \\
      --hparams_set=S --data_dir=D --train_steps=1000

Started on several hosts with the same --output_dir or --study, the processes share the trials.
Interrupted or killed and started again, it resumes where it was.
""",
    groups=groups("search", "search_place"),
    body="t2tp.trainer.cli.tune:run",
    required=("hparams_range", "output_dir"),
    positional=(
        Positional(
            "FLAGS", "Flags of t2tp_trainer, after --.", takes_rest=True, groups=_TRAINER_GROUPS
        ),
    ),
    imports_tensorflow=False,
)

PLAN = ProgramSpec(
    name="t2tp_plan",
    intro="""
Predicts the cost of a training step on a cluster: seconds, memory, traffic, and the bottleneck.
Needs neither the cluster nor data:

  t2tp_plan --model=transformer_lm --hparams_set=gpt3_175b --vocab_size=50257 --cluster=a100 \\
      --mesh_shape='data:128;model:8'
  t2tp_plan --model=transformer_lm --hparams_set=llama_7b --vocab_size=32000 --cluster=h100 \\
      --search --devices=64 --global_batch_tokens=1M
""",
    groups=(
        *groups("planning", "layout_search"),
        groups("what")[0].without("random_seed"),
        groups("where")[0].without("tmp_dir", "generate_data"),
        groups("mesh")[0].without(
            "xla", "intra_op_parallelism_threads", "inter_op_parallelism_threads"
        ),
    ),
    body="t2tp.trainer.cli.plan:run",
    required=("model", "hparams_set", "cluster"),
    answers={"registry_help": _REGISTRY},
)

CALIBRATE = ProgramSpec(
    name="t2tp_calibrate",
    intro="""
Measures this machine in some minutes, and writes a cluster file for t2tp_plan. Nothing else should
run meanwhile:

  t2tp_calibrate
  t2tp_plan --cluster=this_machine --model=transformer_lm --hparams_set=gpt2_small \\
      --vocab_size=50257
""",
    groups=groups("calibration"),
    body="t2tp.trainer.cli.calibrate:run",
)

PROGRAMS = {
    spec.name: spec
    for spec in (
        TRAINER,
        DATAGEN,
        LAUNCH,
        EVAL,
        REPLAY,
        DECODER,
        EXPORTER,
        AVG_CHECKPOINTS,
        CONVERT,
        INSPECT_CHECKPOINT,
        BLEU,
        TUNE,
        PLAN,
        CALIBRATE,
    )
}

# The entry points, which pyproject.toml names.
t2tp_trainer = partial(run_program, TRAINER)
t2tp_datagen = partial(run_program, DATAGEN)
t2tp_launch = partial(run_program, LAUNCH)
t2tp_eval = partial(run_program, EVAL)
t2tp_replay = partial(run_program, REPLAY)
t2tp_decoder = partial(run_program, DECODER)
t2tp_exporter = partial(run_program, EXPORTER)
t2tp_avg_checkpoints = partial(run_program, AVG_CHECKPOINTS)
t2tp_convert = partial(run_program, CONVERT)
t2tp_inspect_checkpoint = partial(run_program, INSPECT_CHECKPOINT)
t2tp_bleu = partial(run_program, BLEU)
t2tp_tune = partial(run_program, TUNE)
t2tp_plan = partial(run_program, PLAN)
t2tp_calibrate = partial(run_program, CALIBRATE)
