"""The models of `their_models` as runs of t2tp."""

import functools
import json
from pathlib import Path

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.models
from t2tp import registry
from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.variables import restore
from t2tp.decoding import DecodeOptions, Decoder, Request, decode
from t2tp.huggingface.model_directory import ModelDirectory
from t2tp.huggingface.safetensors_file import TensorInfo, read_header
from t2tp.layout_check.double_program import DoubleProgram
from t2tp.mesh.storage import Storage
from t2tp.optim import train_step
from t2tp.trainer.cli.programs import t2tp_convert
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_dir.find_checkpoint import find
from tests.huggingface import their_models
from tests.huggingface.their_models import LENGTH, VOCAB
from tests.layout_check.double_program import values_of

Features = dict[str, np.ndarray]

MESHES = {
    "one device": ("", ""),
    "2x2": (
        "data:2;model:2",
        "batch:data;heads:model;kv_heads:model;d_ff:model;vocab:model;experts:data",
    ),
    "1x4": ("data:1;model:4", "batch:data;heads:model;d_ff:model;vocab:model;experts:data"),
    "seq:2": ("seq:2", "length:seq"),
    "stage:2": ("stage:2", "layers:stage"),
    "ZeRO 3": ("data:2", "batch:data", Storage(3)),
}
_DESCENT = {
    **{"optimizer": "sgd", "learning_rate_schedule": "constant", "learning_rate_constant": 1.0},
    **{"weight_decay": 0.0, "clip_grad_norm": 0.0, "optimizer_sgd_momentum": 0.0},
}


def convert(*flags: str) -> int:
    """Runs `t2tp_convert`; returns its exit code."""
    return t2tp_convert(["t2tp_convert", *flags])


@functools.cache
def run_of(name: str) -> Path:
    """Converts a model to a run."""
    source = their_models.directory(name)
    run = source.with_name(f"{name}-run")
    assert convert(f"--from_hf={source}", f"--output_dir={run}") == 0
    return run


def saved(name: str) -> Checkpoint:
    """Returns the run's checkpoint."""
    return find(str(run_of(name)))


def model_of(name: str):
    """Returns our model with the run's hparams."""
    run = run_files.read(str(run_of(name)))
    sizes = {"targets": VOCAB, "inputs": VOCAB}
    model_class = registry.model(run.flags["model"])
    if run.hparams.values().get("num_classes"):
        sizes["targets"] = run.hparams.num_classes
    elif run.hparams.values().get("mlm_head") and not run.hparams.mask_token_id:
        sizes = {"targets": VOCAB - 1}
    elif "inputs" not in model_class.takes:
        del sizes["inputs"]
    return model_class(run.hparams, sizes)


def features_of(name: str, tokens: np.ndarray, is_real: np.ndarray | None = None) -> Features:
    """Returns rows of one document each; without `is_real`, the rows have no padding."""
    segments = np.ones_like(tokens) if is_real is None else is_real.astype(np.int32)
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    return {name: tokens, f"{name}_segmentation": segments, f"{name}_position": positions}


def features() -> Features:
    """Returns the targets that all models are tested on."""
    return features_of("targets", their_models.targets())


def logits(name: str, mesh: str, fed: Features | None = None) -> np.ndarray:
    """Returns the logits of the targets, [batch, length, vocab]."""
    fed = features() if fed is None else fed
    program = _program(name, mesh, _logits, fed)
    return program(fed)["logits"][..., :VOCAB]


def descent(name: str, mesh: str, fed: Features | None = None) -> dict[str, np.ndarray]:
    """Returns the logits and the loss of a step, and what the step subtracts from each variable."""
    fed = features() if fed is None else fed
    made = model_of(name)
    for key, value in _DESCENT.items():
        if key in made.hparams:
            made.hparams.set(key, value)

    def step(on_mesh, made, given):
        done = train_step(
            lambda part: made.loss(on_mesh, part, True), given, on_mesh, made.hparams, 1
        )
        return {"loss": done.loss, **_logits(on_mesh, made, given)}

    program = _program(name, mesh, step, fed, made)
    before = values_of(program)
    found = dict(program(fed))
    after = values_of(program)
    found["logits"] = found["logits"][..., :VOCAB]
    return found | {key: value - after[key] for key, value in before.items()}


def generated(name, mesh, rows, length, fed=None):
    """Returns the most probable continuations of prompts, or the outputs for inputs."""
    options = DecodeOptions.parse("beam_size=1,eos_id=-1")
    made, layout = model_of(name), t2tp.Layout(*MESHES[mesh])

    def predict(kinds, batch):
        return restored(
            name, mesh, lambda on_mesh, given: decode(made, on_mesh, given, options), kinds
        )(batch)

    requests = [
        Request(prefix=row, limit=length) if fed is None else Request(inputs=row, limit=length)
        for row in rows
    ]
    decoder = Decoder(predict, layout, options, max_length=made.max_length)
    return [best for (best,) in decoder(requests)]


def _logits(on_mesh, made, fed):
    return {"logits": made.logits(on_mesh, fed)}


def _program(name: str, mesh: str, step, fed: Features, made=None) -> DoubleProgram:
    made = model_of(name) if made is None else made
    kinds = {key: t2tp.Feature(f"batch:4;length:{LENGTH}", tf.int32) for key in fed}
    return restored(name, mesh, lambda on_mesh, given: step(on_mesh, made, given), kinds)


def restored(name: str, mesh: str, step, kinds: dict[str, t2tp.Feature]) -> DoubleProgram:
    """Returns a float64 program with the variables of the model's run."""
    made = DoubleProgram(step, kinds, layout=t2tp.Layout(*MESHES[mesh]), xla=False)
    restore(saved(name), made.variables, strict=True)
    return made


def check_gradients(name: str, ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    """Compares the gradients of our variables with the gradients of the Hugging Face tensors."""
    source = ModelDirectory.from_path(their_models.directory(name))
    for variable in source.variables(source.hparams()):
        for piece in variable.pieces:
            wanted = piece.view(theirs[piece.theirs])
            begin = piece.expert or 0
            got = ours[variable.name][begin : begin + len(wanted)]
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6, err_msg=variable.name)


def check_there_and_back(name: str, back: Path) -> None:
    """Converts a model's run back, and compares the config, and all bits of the tensors."""
    source = their_models.directory(name)
    check_tensors(run_of(name), back, read_header(source / "model.safetensors"))
    configs = [json.loads((path / "config.json").read_text()) for path in (back, source)]
    assert configs[0] == configs[1]


def check_tensors(run: Path, back: Path, theirs: dict[str, TensorInfo]) -> None:
    """Converts a run to a directory, and compares all bits of its tensors with `theirs`."""
    assert convert(f"--to_hf={back}", f"--output_dir={run}") == 0
    ours = read_header(back / "model.safetensors")
    assert set(ours) == set(theirs)
    for key, tensor in theirs.items():
        assert (ours[key].dtype, ours[key].shape) == (tensor.dtype, tensor.shape)
        assert ours[key].opened().tobytes() == tensor.opened().tobytes(), key
