"""Preference losses: equal to TRL's trainer, on every layout, packed or not."""

import functools
import io
import json
import math

import numpy as np
import pytest

import t2tp.hparams  # noqa: F401 (registers sets)
from t2tp import problems, registry
from t2tp.models.model import FeatureMismatchError
from t2tp.problems.metrics import compute, possible
from t2tp.trainer.errors import UsageError
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.hooks.hook import Hook
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_spec import RunSpec
from tests.huggingface.tiny_files import END, write_tiny_llama
from tests.trainer.command import call

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
STEPS, BATCH, LENGTH = 20, 4, 64
# What TRL logs, by our metrics.
THEIR_NAMES = {
    "reward_chosen": "rewards/chosen",
    "reward_rejected": "rewards/rejected",
    "reward_margin": "rewards/margins",
    "reward_accuracy": "rewards/accuracies",
    "log_prob_chosen": "logps/chosen",
    "log_prob_rejected": "logps/rejected",
}


def random_records(number, seed=0):
    """Returns pairs of texts of different lengths."""
    draw = np.random.default_rng(seed)

    def text(low, high):
        return "".join(f" {word}" for word in draw.choice(WORDS, draw.integers(low, high)))

    records = []
    for _ in range(number):
        chosen, rejected = text(1, 8), text(1, 8)
        records.append({"prompt": text(1, 6), "chosen": chosen, "rejected": f"{rejected} dog"})
    return records


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Converts a tiny Llama, whose directory is next to the run."""
    directory = tmp_path_factory.mktemp("base")
    write_tiny_llama(directory / "hf", bos_token_id=0, eos_token_id=0, num_hidden_layers=2)
    run = directory / "run"
    assert call("t2tp_convert", from_hf=directory / "hf", output_dir=run) == 0
    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory, base):
    """Prepares 120 pairs; returns the options of the problem and the directory."""
    directory = tmp_path_factory.mktemp("preferences")
    file = directory / "pairs.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in random_records(120)))
    options = f"files={file},vocabulary_from={base / 'huggingface'}"
    problems.find("preferences", options).prepare(directory / "data")
    return options, directory / "data"


class Recorder(Hook):
    """Records the losses and the metrics of the steps."""

    def __init__(self):
        self.losses, self.norms, self.metrics = [], [], []

    def after_step(self, training, outputs):
        sums = {
            name.removeprefix("metrics/"): float(outputs[name])
            for name in outputs
            if name.startswith("metrics/")
        }
        self.norms.append(float(outputs["scalars/gradient_norm"]))
        self.losses.append(float(outputs["loss"]))
        self.metrics.append(compute(possible(THEIR_NAMES, sums), sums))


def experiment(
    base, data, run, recorder, arrangement="padded", steps=STEPS, reference="", **changes
):
    options, data_dir = data
    hparams = run_files.read(str(base)).hparams.copy()
    settings = {
        "batch_size": BATCH,
        "max_length": LENGTH,
        "optimizer": "sgd",
        "learning_rate_schedule": "constant",
        "learning_rate_constant": 1.0,
        "clip_grad_norm": 0.0,
        "weight_decay": 0.0,
        "preference_loss": "dpo",
    }
    for name, value in {**settings, **changes}.items():
        hparams.set(name, value)
    spec = RunSpec.resolve(
        "transformer_lm",
        "preferences",
        hparams,
        RunConfig(str(run), warm_start_from=str(base), reference_from=reference),
        data_dir=data_dir,
        train_steps=steps,
        problem_options=f"{options},arrangement={arrangement}",
    )
    return Experiment(spec, hooks=[recorder])


def trained(base, data, run, **changes):
    """Trains; returns the recorder."""
    recorder = Recorder()
    experiment(base, data, run, recorder, **changes).train()
    return recorder


def ordered_pairs(base, data, run, **changes):
    """Returns the pairs of the training's batches, in order."""
    made = experiment(base, data, run, Recorder(), **changes)
    problem, data_dir = made.spec.problem, made.spec.data_dir
    decode = problem.decoder(problem.directory(data_dir))
    stored = problem.stored(data_dir, "train")
    stream = made._train_inputs.stream
    return [
        decode({name: column.example(number) for name, column in stored.items()})
        for step in range(STEPS)
        for number in stream[step].examples.tolist()
    ]


def trl_training(base, pairs, directory, **settings):
    """Trains with TRL on pairs, in order; returns the logs of the steps."""
    trl = pytest.importorskip("trl", reason="pip install -e '.[hf-tests]'")
    import datasets
    import tokenizers
    import transformers

    source = tokenizers.Tokenizer.from_file(str(base.parent / "hf" / "tokenizer.json"))
    source.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, source.token_to_id(END))]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=source, bos_token=END, eos_token=END, pad_token=END
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(base.parent / "hf")
    kind = (trl.DPOTrainer, trl.DPOConfig)
    if "cpo_alpha" in settings:
        from trl.experimental.cpo import CPOConfig, CPOTrainer

        kind = (CPOTrainer, CPOConfig)
    config = kind[1](
        output_dir=str(directory),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        max_length=LENGTH,
        logging_steps=1,
        report_to=[],
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        train_sampling_strategy="sequential",
        disable_tqdm=True,
        **{"learning_rate": 1.0, **settings},
    )
    dataset = datasets.Dataset.from_list(pairs)
    trainer = kind[0](model=model, args=config, train_dataset=dataset, processing_class=tokenizer)
    trainer.train()
    return [each for each in trainer.state.log_history if "rewards/chosen" in each]


CASES = {
    "dpo": ({}, {}),
    "dpo_norm": ({"preference_loss": "dpo_norm"}, {"loss_type": ["sigmoid_norm"]}),
    "ipo": (
        {"preference_loss": "ipo", "preference_beta": 0.3, "learning_rate_constant": 0.1},
        {"loss_type": ["ipo"], "beta": 0.3, "learning_rate": 0.1},
    ),
    "sft": ({"preference_sft": 0.5}, {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}),
    "simpo": (
        {"preference_loss": "simpo", "preference_beta": 2.0, "learning_rate_constant": 0.1},
        {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "learning_rate": 0.1},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_training_equals_that_of_trl(base, data, tmp_path, case):
    ours, theirs = CASES[case]
    recorder = trained(base, data, tmp_path / "run", **ours)
    pairs = ordered_pairs(base, data, tmp_path / "other", **ours)
    logs = trl_training(base, pairs, tmp_path / "trl", **theirs)
    assert len(logs) == len(recorder.losses) == STEPS
    np.testing.assert_allclose(recorder.losses, [each["loss"] for each in logs], atol=1e-5)
    norms = [each["grad_norm"] for each in logs]
    np.testing.assert_allclose(recorder.norms, norms, rtol=1e-4, atol=1e-5)
    for name, their_name in THEIR_NAMES.items():
        if case == "simpo" and name.startswith("log_prob"):
            continue  # TRL logs means over tokens.
        found = [each[name] for each in recorder.metrics]
        np.testing.assert_allclose(
            found, [each[their_name] for each in logs], rtol=1e-5, atol=2e-5, err_msg=name
        )


MESHES = {
    "one device": {},
    "data": {"mesh_shape": "data:2;model:2"},
    "length": {"mesh_shape": "seq:2;data:2", "layout": "batch:data;length:seq"},
    "microbatches": {"microbatches": 2},
    "stages": {
        "mesh_shape": "stage:2;data:2",
        "layout": "layers:stage;batch:data",
        "microbatches": 2,
    },
    "zero": {"mesh_shape": "data:4", "zero_stage": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("arrangement", ["packed", "padded"])
@pytest.mark.parametrize("mesh", MESHES)
def test_the_first_loss_is_ln_2_on_every_layout(base, data, tmp_path, mesh, arrangement):
    # With dropout, a reference that had dropout would not equal the model.
    changes = {"batch_size": 8, **MESHES[mesh]}
    run = trained(base, data, tmp_path / "run", arrangement=arrangement, steps=2, **changes)
    assert run.losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert run.metrics[0]["reward_chosen"] == run.metrics[0]["reward_rejected"] == 0
    assert run.losses[1] < math.log(2) - 1e-4


EXACT = [{"mesh_shape": "data:2"}, MESHES["microbatches"], MESHES["stages"], MESHES["zero"]]


@pytest.fixture(scope="module")
def exact_losses(base, data, tmp_path_factory):
    """Returns a function that trains with a loss, on one device once for all tests."""

    @functools.cache
    def losses(loss, **mesh):
        sft = {"preference_sft": 0.5} if loss == "dpo" else {}
        same = {"batch_size": 64, "exact_sums": 8, "preference_loss": loss, "steps": 2, **sft}
        return trained(base, data, tmp_path_factory.mktemp("exact") / "run", **same, **mesh).losses

    return losses


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["dpo", "orpo"])
@pytest.mark.parametrize("mesh", EXACT, ids=["data", "microbatches", "stages", "zero"])
def test_exact_sums_have_the_same_bits(exact_losses, mesh, loss):
    assert exact_losses(loss, **mesh) == exact_losses(loss)


@pytest.mark.parametrize("name", ["run", "hf"])
def test_the_reference_may_be_another_run_or_a_hugging_face_directory(base, data, tmp_path, name):
    other = str(base.with_name(name))
    run = trained(base, data, tmp_path / "run", reference=other, steps=1, mesh_shape="data:2")
    assert run.losses[0] == pytest.approx(math.log(2), abs=1e-6)


def test_a_resumed_run_keeps_the_scores_of_its_beginning(base, data, tmp_path):
    changes = {"batch_size": 8, "arrangement": "packed"}
    whole = trained(base, data, tmp_path / "whole", steps=6, **changes)
    run = tmp_path / "run"
    trained(base, data, run, steps=3, **changes)
    rest = trained(base, data, run, steps=6, **changes)
    assert whole.losses[3:] == rest.losses
    (scores,) = (run / "reference").iterdir()
    damaged = bytearray(good := scores.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    scores.write_bytes(bytes(damaged))
    with pytest.raises(UsageError, match="damaged"):
        trained(base, data, run, steps=7, **changes)
    with np.load(io.BytesIO(bytes(good))) as saved:
        for save, few in ((np.savez_compressed, None), (np.savez, 1)):
            arrays = {each: x[:few] if x.ndim else x for each, x in saved.items()}
            save(scores, **arrays)
            with pytest.raises(UsageError, match="is damaged: it"):
                trained(base, data, run, steps=7, **changes)
    scores.unlink()
    with pytest.raises(UsageError, match="is missing"):
        trained(base, data, run, steps=7, **changes)


def test_the_reference_has_no_dropout(base, data, tmp_path):
    dropout = {"layer_prepostprocess_dropout": 0.3}
    runs = {rate: tmp_path / str(rate) for rate in (0, 1)}
    for rate, run in runs.items():
        recorder = trained(base, data, run, steps=1, batch_size=8, **(dropout if rate else {}))
    assert recorder.losses[0] != pytest.approx(math.log(2), abs=1e-4)
    one, other = (np.load(run / "reference/train-padded-64.npz") for run in runs.values())
    np.testing.assert_array_equal(one["reference_chosen"], other["reference_chosen"])


APART = [
    ("preferences", "", "reference_chosen.*set preference_loss=dpo"),
    ("instructions", "dpo", "reference_chosen, reference_rejected is missing"),
]


@pytest.mark.parametrize(("problem", "loss", "message"), APART)
def test_pairs_and_their_loss_go_together(problem, loss, message):
    hparams = registry.hparams("transformer_lm_tiny")
    hparams.set("preference_loss", loss)
    model = registry.model("transformer_lm")(hparams, {"targets": 9})
    with pytest.raises(FeatureMismatchError, match=message):
        model.check_features(problems.find(problem).features)
