"""Every way out of a run gives the score that the run's own decoder gives."""

import functools
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

import t2tp.hparams  # noqa: F401  (registers the sets)
from t2tp import registry
from t2tp.decoding import DecodeOptions
from t2tp.huggingface.known_types import MODEL_TYPES
from t2tp.problems.vocab.vocabulary_file import load_vocabulary
from t2tp.trainer.inference.run_decoder import RunDecoder
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_spec import RunSpec
from tests.huggingface import tiny_files
from tests.trainer.command import call
from tests.trainer.trained_runs import Run

transformers = pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")

ROWS, CONTEXT = 8, 32
SENTENCE = "the quick brown fox jumps over the lazy dog"  # More than 8 tokens.
PROBLEM = "languagemodel_textfiles"
_AVERAGES = "ema_decay=0.5"
_EXPERTS = dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], head_dim=4)
_EXPERTS |= dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
_MODELS = {
    "gpt2": tiny_files.write_tiny_gpt2,  # Tied embeddings and learned positions.
    "llama": functools.partial(tiny_files.write_tiny_llama, tie_word_embeddings=False),
    "qwen3_moe": functools.partial(tiny_files.write_tiny_llama, **_EXPERTS),
}
# Case -> (the model or the case whose run training starts from, hparams).
CASES = {
    "tied": ("gpt2", _AVERAGES),
    "untied": ("llama", _AVERAGES),
    "adapters": ("untied", f"{_AVERAGES},lora_rank=2,lora_targets=[query,feed_forward]"),
    "balanced": ("qwen3_moe", f"{_AVERAGES},moe_balance_rate=0.01"),
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Returns a function from the name of a model or a case to its run, made at the first call."""
    directory = tmp_path_factory.mktemp("ways")
    (directory / "texts.txt").write_text(f"{SENTENCE}\n" * 60)

    @functools.cache
    def run_of(name: str) -> Run:
        made = Run(directory / name, directory / f"data-{name}", PROBLEM)
        if name in _MODELS:
            _MODELS[name](directory / f"hf-{name}", bos_token_id=0)  # The token of END.
            source = directory / f"hf-{name}"
            assert call("t2tp_convert", from_hf=source, output_dir=made.output_dir) == 0
            return made
        source, hparams = CASES[name]
        rate = "learning_rate_schedule=constant,learning_rate_constant=0.02"
        return train(run_of(source), made, f"{hparams},{rate}", train_steps=4)

    return run_of


def train(source: Run, made: Run, hparams: str, **flags: object) -> Run:
    """Trains a run that starts from another run, on short rows of its data."""
    files = made.output_dir.parent / "texts.txt"
    tokenizer = source.output_dir / "huggingface"
    options = f"files={files},documents=lines,vocabulary_from={tokenizer}"
    data = dict(problem=PROBLEM, problem_options=options)
    assert call("t2tp_datagen", data_dir=made.data_dir, **data) == 0
    model = "transformer_moe" if "moe" in hparams else "transformer_lm"
    sizes = f"max_length={ROWS},batch_size=4,batch_size_unit=sequences_per_batch"
    given = dict(data, model=model, schedule="train")
    given |= dict(hparams_set=source.output_dir / "run.yaml", hparams=f"{sizes},{hparams}")
    flags = {"warm_start_from": source.output_dir, **given, **flags}
    assert call("t2tp_trainer", *made.flags(**flags)) == 0
    return made


def score(run: Run, directory: Path, **flags: object) -> float:
    """Returns the decoder's log-probability of the sentence, with EOS."""
    (directory / "scored.txt").write_text(SENTENCE)
    result = directory / "scores.txt"
    flags = {"score_file": directory / "scored.txt", "decode_to_file": result, **flags}
    assert run.decode(xla="false", **flags) == 0
    return float(result.read_text())


def their_score(path: Path, tokenizer: Path, adapters: Path | None = None) -> float:
    """Returns the log-probability that `transformers` computes."""
    import torch

    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    if adapters is not None:
        peft = pytest.importorskip("peft", reason="pip install peft")
        model = peft.PeftModel.from_pretrained(model, adapters)

    vocabulary = load_vocabulary(tokenizer)
    tokens = torch.tensor([[0, *vocabulary.encode(SENTENCE), vocabulary.end_of_document]])
    with torch.no_grad():
        logits = torch.log_softmax(model.eval()(tokens[:, :-1]).logits, -1)
    return float(logits.gather(-1, tokens[:, 1:, None]).sum())


def harness_way(run: Run) -> float:
    """Asks lm-evaluation-harness's interface for the log-likelihood."""
    pytest.importorskip("lm_eval", reason="pip install -e '.[harness]'")
    from lm_eval.api.instance import Instance

    from t2tp.trainer.inference.harness import harness_model

    saved = run_files.read_run(str(run.output_dir))
    names = {name: saved.flags[name] for name in ("model", "problem", "problem_options")}
    config, sizes = RunConfig(str(run.output_dir)), dict(data_dir=run.data_dir, train_steps=4)
    spec = RunSpec.resolve(hparams=saved.hparams, config=config, **names, **sizes)
    decoder = RunDecoder(spec, spec.make_estimator(), DecodeOptions(1, batch_size=1))
    asked = Instance("loglikelihood", {}, ("", SENTENCE + tiny_files.END), 0)
    [(found, _)] = harness_model(spec, decoder).loglikelihood([asked])
    return found


def check_saved_model(run: Run, directory: Path, capfd) -> None:
    """Checks that a SavedModel has the texts and scores of the decoder's beams."""
    options = "beam_size=2,extra_length=6,eos_id=-1,return_beams=true,write_beam_scores=true"
    export = directory / "export"
    flags = run.flags(export_dir=export, max_input_length=16, decode_hparams=options)
    assert call("t2tp_exporter", *flags) == 0
    assert "maps tokens to tokens: TensorFlow cannot run" in capfd.readouterr().err
    (path,) = export.iterdir()
    vocabulary = load_vocabulary(run.output_dir / "huggingface")
    (line,) = run.decoded(directory, ["the quick"], options)
    tokens = vocabulary.encode("the quick")
    signatures = tf.saved_model.load(str(path)).signatures
    assert {*signatures} == {"serving_default", "tokens"}
    given = dict(ids=tf.constant([tokens]), lengths=tf.constant([len(tokens)]))
    served = signatures["serving_default"](**given)
    texts = [vocabulary.decode(row.tolist()) for row in served["ids"][0].numpy()]
    fields = line.split("\t")
    assert fields[::2] == [text.replace("\n", "\\n").replace("\t", "\\t") for text in texts]
    assert served["scores"][0].numpy() == pytest.approx([*map(float, fields[1::2])], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_way_out_gives_the_score_of_the_decoder(run_of, case, tmp_path, capfd):
    """The rows of training are shorter than the model's context, and than the sentence."""
    run = run_of(case)
    wanted = pytest.approx(score(run, tmp_path), abs=2e-4)
    last = score(run, tmp_path, weights="last")
    assert last != pytest.approx(wanted.expected, abs=1e-2)
    assert harness_way(run) == wanted
    check_saved_model(run, tmp_path, capfd)

    averaged = Run(tmp_path / "averaged", run.data_dir, PROBLEM)
    paths = {"output_dir": run.output_dir, "output_path": averaged.output_dir}
    assert call("t2tp_avg_checkpoints", num_last_checkpoints=1, **paths) == 0
    assert score(averaged, tmp_path) == wanted

    unchanged = Run(tmp_path / "unchanged", tmp_path / "data", PROBLEM)
    (tmp_path / "texts.txt").write_text(f"{SENTENCE}\n" * 60)
    hparams = CASES[case][1].replace("_rate=0.01", "_rate=0") + ",learning_rate_constant=0"
    train(run, unchanged, hparams, train_steps=1)
    assert score(unchanged, tmp_path) == wanted

    out, export = tmp_path / "hf", {"output_dir": run.output_dir, "merge_lora": case == "adapters"}
    assert call("t2tp_convert", to_hf=out, **export) == (2 if case == "balanced" else 0)
    if case == "balanced":
        assert "moe_balance_rate=0.0, and the run has 0.01" in capfd.readouterr().err
        return
    assert their_score(out, out) == wanted
    assert transformers.AutoConfig.from_pretrained(out).max_position_embeddings == CONTEXT
    if case == "adapters":
        base, adapters = run_of(CASES[case][0]).output_dir, tmp_path / "adapters"
        assert call("t2tp_convert", to_hf=tmp_path / "base", output_dir=base) == 0
        assert call("t2tp_convert", to_hf=adapters, output_dir=run.output_dir) == 0
        assert their_score(tmp_path / "base", out, adapters) == wanted


@pytest.mark.slow
def test_a_model_trained_from_scratch_is_exported_or_what_is_in_the_way_is_named(tmp_path, capfd):
    tokenizer = tmp_path / "source/huggingface"
    tokenizer.mkdir(parents=True)
    tiny_files.write_tokenizer(tokenizer)
    (tmp_path / "texts.txt").write_text(f"{SENTENCE}\n" * 60)
    source, run = (Run(tmp_path / name, tmp_path / "data", PROBLEM) for name in ("source", "run"))
    sizes = "d_model=16,d_ff=32,num_heads=4,d_kv=4,num_hidden_layers=1,context_length=32"
    sizes += ",mesh_shape=,zero_stage=0,activation_dtype=float32,microbatches=1"
    sizes += ",transfer_from=transformer_lm_plain_tiny"  # Its scales are written as numbers.
    flags = {"hparams_set": "llama_7b", "warm_start_from": None, "train_steps": 2}
    train(source, run, sizes, **flags)
    out = tmp_path / "hf"
    assert call("t2tp_convert", to_hf=out, output_dir=run.output_dir) == 0
    assert their_score(out, tokenizer) == pytest.approx(score(run, tmp_path), abs=2e-4)
    end = load_vocabulary(tokenizer).end_of_document
    assert transformers.AutoConfig.from_pretrained(out).eos_token_id == end != 2
    normed = Run(tmp_path / "normed", tmp_path / "data", PROBLEM)
    train(source, normed, f"{sizes},embedding_norm=true", **flags)
    assert call("t2tp_convert", to_hf=tmp_path / "no", output_dir=normed.output_dir) == 2
    said = capfd.readouterr().err
    assert "no Hugging Face type has embedding_norm=True" in said and "gpt2_small" in said
    shutil.rmtree(tmp_path / "data")
    assert call("t2tp_convert", to_hf=tmp_path / "no_end", output_dir=run.output_dir) == 0
    assert "config.json names no eos_token_id" in capfd.readouterr().err


def test_each_set_has_a_type_or_hparams_that_no_type_has():
    for name in registry.list_hparams():
        model, hparams = registry.model_of_hparams(name), registry.hparams(name)
        types = [each for each in MODEL_TYPES if each.model == model]
        if name == "vit_base":  # A run on square images completes it from its variables.
            assert [each.obstacles(hparams) for each in types] == [{"image_shape": []}]
            hparams.image_shape, hparams.num_classes = [224, 224, 3], 1000
        obstacles = [each.obstacles(hparams) for each in types]
        assert all(names.keys() <= hparams.values().keys() for names in obstacles)
        if name.startswith(("gpt2", "gpt3", "llama", "vit_base")):
            assert {} in obstacles
        if name in ("transformer_lm_tiny", "transformer_lm_base"):
            ours = ("embedding_norm", "embedding_shortcut", "token_shift")
            assert dict.fromkeys(ours, True) in obstacles
