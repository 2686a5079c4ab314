"""The program as people type it (here in this process: starting TensorFlow takes seconds)."""

import json
import re
from types import SimpleNamespace

import pytest

from t2tp import registry
from t2tp.checkpoint import all_steps
from t2tp.toml import read_packaged
from t2tp.trainer import run_yaml
from t2tp.trainer.cli import train
from t2tp.trainer.cli.flag_groups import all_groups
from t2tp.trainer.cli.programs import t2tp_trainer as main
from t2tp.trainer.run_dir import run_files
from tests.files import files_in
from tests.trainer.command import wrong_flags
from tests.trainer.conftest import set_flags
from tests.trainer.hooks.events import read_scalars


def test_it_trains_evaluates_and_goes_on(trainer, tmp_path, capfd):
    mesh = {"mesh_shape": "data:2;model:2"}
    assert trainer(**mesh) == 0
    said = capfd.readouterr().err
    for expected in (
        "mesh data:2;model:2",
        "processor 3: ",
        "transformer_lm on languagemodel_encodings: ",
        f"the run is in {tmp_path / 'run'}",
        "step 6/6  loss ",
        "evaluation at step 6  loss ",
    ):
        assert expected in said
    assert "INFO" not in said
    assert trainer(train_steps=8, hparams="batch_size=4", **mesh) == 0
    said = capfd.readouterr().err
    assert "batch_size: 8 in the saved run, 4 in --hparams; using 4" in said
    assert "train_steps: 6 in the saved run; using 8 from --train_steps" in said
    assert "resuming from the checkpoint of step 6" in said
    assert sorted(read_scalars(tmp_path / "run")["loss"]) == list(range(1, 9))
    assert all_steps(tmp_path / "run/checkpoints") == [6, 8]


def test_a_longer_run_says_how_its_learning_rate_changes(caplog):
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse("learning_rate_schedule=constant*linear_warmup,learning_rate_constant=0.001")
    hparams.learning_rate_warmup_steps = 20
    saved = SimpleNamespace(flags={"train_steps": 10})
    for steps in (10, 30, 40):
        spec = SimpleNamespace(saved=saved, train_steps=steps, hparams=hparams)
        train._warn_of_new_rate(spec, 10)
    (said,) = [record.getMessage() for record in caplog.records if "instead of 10" in record.msg]
    assert "train_steps=40 instead of 10 changes the learning rate of step 10" in said
    assert "from 0.001 to 0.0005; --hparams=learning_rate_warmup_steps=1 keeps" in said


def test_evaluations_stop_a_training(trainer, tmp_path):
    stopping = {"eval_early_stopping_steps": 2, "eval_early_stopping_metric_delta": 9}
    assert trainer(train_steps=20, local_eval_frequency=1, **stopping) == 0
    assert all_steps(tmp_path / "run/checkpoints") == [3]


@pytest.mark.slow
def test_a_warning_is_said_once(trainer, capfd):
    """The programs for training and for evaluation both find the rule without effect."""
    assert trainer(train_steps=1, mesh_shape="data:2", layout="batch:data;heds:data") == 0
    said = capfd.readouterr().err
    for warning in (
        "warning: Layout rule 'heds:data' has no effect",
        "warning: learning_rate_warmup_steps=5 is more than half of train_steps=1",
    ):
        assert said.count(warning) == 1


@wrong_flags("t2tp_trainer")
def test_wrong_input_is_one_sentence_and_touches_nothing(trainer, tmp_path, capfd, flags, says):
    assert trainer(**flags) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("t2tp_trainer: ")
    assert says in said.err
    assert len(said.err.splitlines()) <= (2 if "data_dir" in flags else 1)
    assert not (tmp_path / "run").exists()


def test_a_run_that_does_not_fit_is_refused_untouched(trainer, trained, capfd):
    run = trained
    set_flags(run, model="transformer_mt")
    before = files_in(run)
    for flags, says in (
        ({}, "holds a run of model transformer_mt"),
        ({"model": None}, "unknown model 'transformer_mt'"),
        ({"output_dir": run / "run.yaml"}, "is not a directory"),
    ):
        capfd.readouterr()
        assert trainer(**flags) == 2
        assert says in capfd.readouterr().err
    assert files_in(run) == before


def test_the_file_of_a_run_repeats_it(trained, tmp_path):
    """The file has the run's data, seed and hparams; flags override it."""
    other = tmp_path / "again"
    assert main(["t2tp_trainer", f"--config={trained / 'run.yaml'}", f"--output_dir={other}"]) == 0
    losses = [read_scalars(run)["loss"] for run in (trained, other)]
    assert losses[0] == losses[1] and list(losses[0]) == [2]
    one, two = (run_files.read(run) for run in (trained, other))
    assert one.hparams == two.hparams
    assert one.flags | {"output_dir": str(other)} == two.flags
    flags = ["--train_steps=3", "--mesh_shape=model:2", "--hparams=batch_size=4"]
    assert main(["t2tp_trainer", f"--config={other / 'run.yaml'}", *flags]) == 0
    resumed = run_files.read(other)
    assert (resumed.flags["train_steps"], resumed.flags["random_seed"]) == (3, 5)
    assert (resumed.hparams.mesh_shape, resumed.hparams.batch_size) == ("model:2", 4)
    assert resumed.hparams.d_ff == 64


CONFIGS = {
    "problm: x": "problm: did you mean problem",
    "hparams: {d_modl: 8}": "no hyperparameter 'd_modl': did you mean d_model",
    "hparams: {learning_rate: {constant: fast}}": "learning_rate_constant=fast: expected float",
    "flags: {train_steps: -1}": "--train_steps=-1: expected",
    "flags: {eval_stepss: 1}": "unknown flag 'eval_stepss': did you mean --eval_steps",
    "flags: {schedule: train, eval_steps: 1}": "--eval_steps has no effect here",
    "flags: {config: x}": "config cannot be under flags",
    **{
        f"flags: {{{name}: {value}}}": f"{name}={value} "
        for name, value in {
            **{"t2t_usr_dir": "/code", "tmp_dir": "/a", "log_json": "/a"},
            **{"coordinator": "other:1", "num_processes": "2"},
            **{"process_id": "1", "generate_data": "true"},
        }.items()
    },
    "flags: {flagfile: /f}": "unknown flag 'flagfile'",
    "flags: {'t2t_usr_dir=/code': /..}": "unknown flag 't2t_usr_dir=/code'",
    "flags: {'t2t_usr_dir=x: /../plug': /..}": "unknown flag 't2t_usr_dir=x",
    "flags: {train_steps: [1, 2]}": "train_steps is a list, and must be",
    "mesh: {mesh_shape: 'data:x'}": "data:x",
    "hparams: {d_ff: 8, d: {ff: 9}}": "d_ff occurs twice",
    "model: a\nmodel: b": "line 2 is not YAML that t2tp reads: 'model' occurs twice",
    "model: &a x\nproblem: *a": "aliases and tags are not supported",
    "model: !!python/name:os.system x": "line 1 is not YAML that t2tp reads",
    "- a": "is a list, and must be an object of names and values",
}


@pytest.mark.parametrize("text", CONFIGS)
def test_a_wrong_file_is_one_sentence(trainer, tmp_path, capfd, text):
    (tmp_path / "wrong.yaml").write_text(text)
    assert trainer(config=tmp_path / "wrong.yaml") == 2
    said = capfd.readouterr().err
    assert CONFIGS[text] in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


# Flags with paths that t2tp only reads, as data.
READ = {"hparams_set", "config", "data_dir", "checkpoint_path", "warm_start_from"}
READ |= {"teacher", "reference_from"}


def test_flags_with_paths_are_read_or_not_taken_from_a_file():
    """A new flag that writes a file or runs code declares its effect in `flags.toml`."""
    table = read_packaged("t2tp.trainer.cli", "programs.toml")["t2tp_trainer"]
    flags, names = all_groups(), table["groups"]
    rows = {name: row for group in names for name, row in flags[group].rows.items()}
    paths = {name for name, row in rows.items() if row.get("type") in ("path", "address")}
    named = {name for name in rows if re.search("_(dir|path|file)$", name)}
    assert {name for name in paths | named if "effect" not in rows[name]} == READ


def test_only_a_runs_own_file_names_its_directory(trained, tmp_path, capfd):
    own, copy = trained / "run.yaml", tmp_path / "copy.yaml"
    settings = run_yaml.read(own)
    settings.flags["output_dir"] = str(trained)
    for path in (own, copy):
        run_yaml.write(path, settings)
    assert main(["t2tp_trainer", f"--config={copy}"]) == 2
    assert f"output_dir={trained} names a directory to write" in capfd.readouterr().err
    assert main(["t2tp_trainer", f"--config={own}", "--schedule=evaluate"]) == 0
    own.write_text(own.read_text().replace("flags:", f"flags:\n  log_json: {tmp_path / 'log'}"))
    assert main(["t2tp_trainer", f"--config={own}"]) == 2
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("text", ["1.10", "1e5", "007", "no", "0x1F", "2001-01-01", "null"])
def test_a_scalar_of_yaml_has_the_value_of_its_text(tmp_path, text):
    (tmp_path / "a.yaml").write_text(f"flags: {{data_dir: {text}}}\nhparams: {{optimizer: {text}}}")
    settings = run_yaml.read(tmp_path / "a.yaml")
    expected = None if text == "null" else text
    assert (settings.flags["data_dir"], settings.hparams["optimizer"]) == (expected, expected)
    run_yaml.write(tmp_path / "b.yaml", settings)
    again = run_yaml.read(tmp_path / "b.yaml")
    assert again.hparams == settings.hparams


def test_hparams_are_printed_with_what_they_may_be(trainer, tmp_path, capfd):
    nothing = dict.fromkeys(("problem", "model", "data_dir", "output_dir"))
    assert trainer(print_hparams=True, hparams="d_ff=64", **nothing) == 0
    said = capfd.readouterr().out.splitlines()
    assert said[said.index("d_ff=64") + 1].startswith("    int, at least 1 and at most 1,048,576")
    assert any("one of pre, post, output, both; " in line for line in said)
    assert trainer(print_hparams=True, hparams="d_ff=0", **nothing) == 2
    assert "d_ff is 0, and must be at least 1" in capfd.readouterr().err
    assert trainer(print_hparams=True, hparams_set=None, **nothing) == 2
    assert "--hparams_set is missing" in capfd.readouterr().err


def test_the_best_step_is_said_at_the_end_with_the_time_on_request(trainer, tmp_path, capfd):
    assert trainer(train_steps=3, local_eval_frequency=1, log_time=True) == 0
    last = capfd.readouterr().err.splitlines()[-1]
    evaluations = [json.loads(line) for line in (tmp_path / "run/eval/eval.jsonl").open()]
    best = min(evaluations, key=lambda each: each["metrics"]["loss"])
    loss = best["metrics"]["loss"]
    said = f"best loss {loss:.4f} at step {best['step']}, of 3 evaluations"
    assert re.fullmatch(rf"\d\d:\d\d:\d\d {said}", last)
