"""`transformer_lm_tiny` in t2tp with its own schedule, also with less of the budget."""

from __future__ import annotations

import training
import turn

turn.PARSER.add_argument("--prepare", action="store_true", help="write the tokens, and end")
args = turn.arguments()

import tensorflow as tf

import t2tp.hparams
import t2tp.models  # noqa: F401
from t2tp import problems, registry
from t2tp.mesh.layout import Layout
from t2tp.program.program import Program
from t2tp.trainer.inputs.problem_inputs import evaluation_inputs, training_inputs
from t2tp.trainer.model_fn import ModeKeys, model_fn_of

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
sizes = turn.sizes(args)
problem = problems.find("languagemodel_python_stdlib", f"vocab_size={sizes.vocab}")
hparams = registry.hparams("transformer_lm_tiny")
hparams.parse(
    f"d_model={sizes.d_model},d_ff={sizes.d_ff * 11 // 16},num_heads={sizes.heads},"
    f"d_kv={sizes.d_kv},num_hidden_layers={sizes.layers},max_length={sizes.length},"
    f"batch_size={sizes.batch},optimizer={args.optimizer},learning_rate_schedule=as_told"
)
if args.prepare:
    problem.prepare(args.data_dir)
layout = Layout.from_hparams(hparams)
validation = evaluation_inputs(problem, args.data_dir, hparams, layout, "validation")
batches = [validation.stream[number] for number in range(training.EVALUATED)]
if args.prepare:
    turn.say({"bytes": sum(validation.counts(batch)["bytes"] for batch in batches)})
    raise SystemExit
rate_now = tf.Variable(0.0, trainable=False)


@registry.register_learning_rate_schedule
def as_told(step, hparams, train_steps):
    """Returns the current rate; it is a variable, because the program is traced only once."""
    return rate_now.read_value() if tf.inside_function() else 1.0


inputs = training_inputs(problem, args.data_dir, hparams, layout, seed=0)
model_fn = model_fn_of(registry.model("transformer_lm"), problem.vocab_sizes(args.data_dir), 1)
program = Program(
    lambda mesh, features: {"loss": model_fn(mesh, features, ModeKeys.TRAIN, hparams).loss},
    inputs.features,
)
evaluation = Program(
    lambda mesh, features: model_fn(mesh, features, ModeKeys.EVAL, hparams).metrics,
    validation.features,
    variables=program.variables,
)
initial = {v.spec.name: v.numpy() for v in program.variables}


def reset() -> None:
    for variable in program.variables:
        variable.assign(initial[variable.spec.name])


def step(number: int, rate: float) -> None:
    rate_now.assign(rate)
    float(program(inputs.stream[number], number)["loss"])


def evaluate() -> float:
    return sum(float(evaluation(batch, 0)["nll"]) for batch in batches)


version = f"t2tp on tensorflow {tf.__version__}"
training.learn(reset, step, evaluate, training.linear, version, shares=(0.4, 0.5, 0.6, 0.8, 1.0))
