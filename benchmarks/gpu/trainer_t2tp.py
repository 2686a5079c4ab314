"""GPT-2 trained by the `Estimator`, as `t2tp_trainer` trains: hooks, reports, data, checkpoint.

The data are made in memory. The speed is read from the trainer's own reports.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import fields
from pathlib import Path

import peer

peer.PARSER.add_argument("--deterministic", choices=["yes", "no"], default="no")
peer.PARSER.add_argument("--cache", default="", help="directory of the compilation cache")
args = peer.arguments()

from t2tp.trainer import compilation_cache

if args.cache:
    compilation_cache.use(args.cache)

import gpt
import model_t2tp
import tensorflow as tf

import t2tp
from t2tp import optim
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.hooks.hook import Hook
from t2tp.trainer.inputs.inputs import Inputs
from t2tp.trainer.model_fn import EstimatorSpec, ModeKeys
from t2tp.trainer.run_config import RunConfig

sizes = gpt.MODELS[args.model]
hparams, model = model_t2tp.make(sizes, args.length)


def model_fn(mesh, features, mode, hparams):
    loss = model.loss(mesh, features, training=True).loss
    if mode == ModeKeys.TRAIN:
        optim.apply_gradients(loss, mesh, hparams, train_steps=1000)
    return EstimatorSpec(mode, loss)


class Stream:
    """The same batch at each step."""

    def __init__(self) -> None:
        self._batch = gpt.packed(sizes, args.batch, args.length, args.segments)

    def __getitem__(self, step):
        return self._batch


class FirstStep(Hook):
    """Measures the time from the beginning of the training to the end of its first launch."""

    def begin(self, training):
        self._start, self.seconds = time.perf_counter(), 0.0

    def after_step(self, training, outputs):
        if not self.seconds:
            float(outputs["loss"])
            self.seconds = time.perf_counter() - self._start


feature = t2tp.Feature(f"batch:{args.batch};length:{args.length}", tf.int32)
inputs = Inputs({name: feature for name in model.takes}, Stream())
every = peer.BETWEEN_READS * args.loop
with tempfile.TemporaryDirectory() as directory:
    log = Path(directory, "log.jsonl")
    settings = {
        "log_step_count_steps": every,
        "log_json": str(log),
        "iterations_per_loop": args.loop,
        "deterministic": args.deterministic == "yes",
    }
    known = {field.name for field in fields(RunConfig)}
    config = RunConfig(directory, **{k: v for k, v in settings.items() if k in known})
    estimator, first = Estimator(model_fn, config, hparams), FirstStep()
    estimator.train(inputs, max(args.steps, 4 * every), [first])
    events = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
reports = [event for event in events if "step_time" in event]
seconds = [report["step_time"] for report in reports[1:]]


peer.report(
    losses=[report["loss"] for report in reports],
    first_step=first.seconds,
    seconds=seconds,
    tokens_per_second=args.batch * args.length / sorted(seconds)[len(seconds) // 2],
    peak_bytes=model_t2tp.peak_bytes(),
    version=model_t2tp.VERSION,
)
