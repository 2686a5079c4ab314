"""What TensorBoard is given besides scalars, and TensorBoard itself, in a real browser."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.plugins.hparams import plugin_data_pb2

from t2tp.processes.rendezvous import free_port
from t2tp.trainer.cli.programs import t2tp_trainer as main
from t2tp.trainer.hooks.summaries import SummaryWriter
from tests.layout_report.browser import CHROMIUM, FLAGS
from tests.patience import PATIENCE
from tests.trainer import (
    tiny_pairs,  # noqa: F401 (registers problems)
    toy,
)
from tests.trainer.conftest import PROBLEM
from tests.trainer.hooks.events import read, read_scalars, read_texts
from tests.trainer.toy_estimator import estimator
from tests.trainer.trained_runs import train


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory) -> Path:
    """The directory of a run on four devices that writes everything."""
    directory = tmp_path_factory.mktemp("tensorboard") / "run"
    flags = {
        "problem": PROBLEM,
        "model": "transformer_lm",
        "hparams_set": "transformer_lm_test",
        "hparams": "learning_rate_constant=0.01",
        "mesh_shape": "data:2;model:2",
        "data_dir": data_dir,
        "output_dir": directory,
        "train_steps": 6,
        "eval_steps": 2,
        "local_eval_frequency": 3,
        "log_step_count_steps": 1,
        "histogram_steps": 3,
        "profile_steps": "4:5",
        "eval_samples": 2,
    }
    assert main(["t2tp_trainer", *(f"--{name}={value}" for name, value in flags.items())]) == 0
    return directory


def test_histograms_count_every_value_of_each_variable(run):
    counts = {
        (event.name, event.step): event.value[:, 2].sum()
        for event in read(run)
        if event.plugin == "histograms"
    }
    assert {step for _, step in counts} == {3, 6}
    assert counts["layer_00/feed_forward/input", 6] == 16 * 32
    assert counts["embedding", 6] == 512 * 16


def test_the_hparams_plugin_knows_the_hparams(run):
    (said,) = [event.data for event in read(run) if event.plugin == "hparams"]
    data = plugin_data_pb2.HParamsPluginData.FromString(said)
    hparams = data.session_start_info.hparams
    assert hparams["learning_rate_constant"].number_value == 0.01
    assert hparams["d_ff"].number_value == 32
    assert hparams["mesh_shape"].string_value == "data:2;model:2"


def test_runs_of_one_name_in_different_directories_are_two(tmp_path, monkeypatch):
    names = set()
    for directory in (tmp_path / "a", tmp_path / "b"):
        directory.mkdir()
        monkeypatch.chdir(directory)
        writer = SummaryWriter("run")
        writer.hparams({"d_ff": 32})
        writer.close()
        (said,) = [event.data for event in read(directory / "run")]
        names.add(plugin_data_pb2.HParamsPluginData.FromString(said).session_start_info.group_name)
    assert len(names) == 2


def test_the_profile_is_where_tensorboard_looks(run):
    (trace,) = run.glob("plugins/profile/*/*.xplane.pb")
    assert b"Einsum" in trace.read_bytes() or b"MatMul" in trace.read_bytes()


def test_a_language_model_continues_the_first_examples_at_each_evaluation(run, data_dir):
    texts = read_texts(run / "eval")
    assert {("samples", 3), ("samples", 6)} <= texts.keys()
    header, _, *rows = texts["samples", 6].splitlines()
    assert header == "| prompt | text | continuation |"
    assert len(rows) == 2
    assert all(len(re.findall(r"(?<!\\\\) \| ", row)) == 2 for row in rows)


@pytest.mark.slow
def test_a_translation_is_shown_beside_inputs_and_targets(tmp_path):
    flags = {"train_steps": 1, "schedule": "train_and_evaluate", "eval_samples": 2}
    trained = train(tmp_path, "translate_upper_case", "transformer", "transformer_test", **flags)
    # An untrained model may write any character, also those at which splitlines() splits.
    header, _, *rows = read_texts(trained.output_dir / "eval")["samples", 1].split("\n")
    assert header == "| inputs | targets | output |"
    for row in rows:
        inputs, targets, _ = row.strip("| ").split(" | ", 2)
        assert inputs.upper() == targets


@pytest.mark.slow
def test_images_are_shown_beside_those_of_the_split(tmp_path):
    pytest.importorskip("PIL.Image")
    flags = {"train_steps": 1, "schedule": "train_and_evaluate", "eval_samples": 2}
    hparams = "batch_size=8,num_hidden_layers=1,mesh_shape=,layout="
    trained = train(
        tmp_path,
        "image_digits_gen",
        "mtf_image_transformer",
        "mtf_image_transformer_digits",
        hparams=hparams,
        eval_steps=1,
        **flags,
    )
    events = [e for e in read(trained.output_dir / "eval") if e.plugin == "images"]
    assert {event.name for event in events} == {"targets", "samples"}
    for event in events:  # Width, height, and a PNG each.
        assert len(event.value) == 2 + 2
        assert all(image.startswith(b"\x89PNG") for image in event.value[2:])


def test_what_cannot_be_decoded_is_refused_before_training(trainer, tmp_path, capfd, data_dir):
    wrong = {"problem": "image_digits", "model": "mlp", "hparams_set": "mlp_tiny"}
    assert trainer(eval_samples=2, data_dir=tmp_path, generate_data=True, **wrong) == 2
    assert "the model mlp does not write" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def tensorboard(run) -> Iterator[str]:
    """A TensorBoard; its address, once it has read the run and another one beside it."""
    estimator(run.parent / "other").train(toy.inputs(), 4)
    port, logdir = free_port(), run.parent
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", f"--port={port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address, deadline = f"http://localhost:{port}", time.monotonic() + PATIENCE
    try:
        while True:
            with contextlib.suppress(OSError):
                if set(asked(address, "runs")) == {"run", "run/eval", "other"}:
                    break
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait()


def asked(address: str, what: str, request: dict[str, Any] | None = None) -> Any:
    """What a TensorBoard answers."""
    json_type = {"Content-Type": "application/json"}
    body = None if request is None else json.dumps(request).encode()
    asking = urllib.request.Request(f"{address}/data/{what}", body, json_type)
    with urllib.request.urlopen(asking) as answer:
        body = answer.read()
    is_packed = answer.headers.get("Content-Encoding") == "gzip"  # The profiler's always are.
    return json.loads(gzip.decompress(body) if is_packed else body)


def curves(directory: Path, address: str, tag: str, lengths: set[int]) -> dict[int, np.ndarray]:
    """Curves a browser draws of a tag: length -> coordinates, [points, 2], y downwards.

    `lengths` are the numbers of points of the curves to wait for.
    """
    # Without 3D TensorBoard draws lines as paths, which are part of the page.
    flags = ["--disable-3d-apis", "--virtual-time-budget=60000", "--window-size=1400,700"]
    profile = f"--user-data-dir={directory / 'profile'}"
    url = f"{address}/?tagFilter=%5E{tag}%24#timeseries"
    command = [CHROMIUM, *FLAGS, *flags, profile, "--dump-dom", url]
    drawn: dict[int, np.ndarray] = {}
    for _ in range(8):  # On a busy machine the page's time can be over before all data is there.
        page = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        for card in re.findall(r"<scalar-card .*?</scalar-card>", page.stdout, re.DOTALL):
            assert f">{tag}<" in card
            unsmoothed = re.findall(r'<path d="M([^"]*)" style="[^"]*opacity: 0.25', card)
            paths = [np.array([xy.split(",") for xy in d.split("L")], float) for d in unsmoothed]
            drawn.update({len(path): path for path in paths})
        if lengths <= drawn.keys():
            break
    return drawn


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_real_tensorboard_shows_the_curves(run, tensorboard, tmp_path):
    listing = asked(tensorboard, "plugins_listing")
    for plugin in ("timeseries", "histograms", "text", "hparams"):
        assert listing[plugin]["enabled"], plugin
    runs = [read_scalars(directory)["loss"] for directory in (run, run / "eval")]
    drawn = curves(tmp_path, tensorboard, "loss", {len(losses) for losses in runs})
    for losses in runs:
        x, y = drawn[len(losses)].T
        assert np.corrcoef(x, list(losses))[0, 1] == pytest.approx(1, abs=1e-4)
        assert np.corrcoef(y, list(losses.values()))[0, 1] == pytest.approx(-1, abs=1e-4)


@pytest.mark.slow
def test_the_hparams_plugin_compares_runs(run, tensorboard):
    request = {"allowedStatuses": ["STATUS_UNKNOWN"], "colParams": [], "sliceSize": 10}
    groups = asked(tensorboard, "plugin/hparams/session_groups", request)["sessionGroups"]
    by_run = {group["sessions"][0]["name"]: group for group in groups}
    assert by_run.keys() == {"run", "other"}
    assert by_run["run"]["hparams"]["learning_rate_constant"] == 0.01
    assert by_run["other"]["hparams"]["learning_rate"] == 0.05
    for name, directories in (("run", ["", "eval"]), ("other", [""])):
        metrics = by_run[name]["metricValues"]
        last = {m["name"]["group"]: m["value"] for m in metrics if m["name"]["tag"] == "loss"}
        assert last == {
            each: list(read_scalars(run.parent / name / each)["loss"].values())[-1]
            for each in directories
        }


@pytest.mark.slow
def test_the_profiler_s_plugin_opens_the_profile(tensorboard):
    pytest.importorskip("xprof")
    assert asked(tensorboard, "plugins_listing")["profile"]["enabled"]
    (name,) = asked(tensorboard, "plugin/profile/runs")
    tools = asked(tensorboard, f"plugin/profile/run_tools?run={name}")
    assert {"overview_page", "trace_viewer@", "framework_op_stats"} <= set(tools)

    def page(tool: str) -> Any:
        (host,) = asked(tensorboard, f"plugin/profile/hosts?run={name}&tag={tool}")
        which = f"run={name}&tag={tool}&host={host['hostname']}"
        return asked(tensorboard, f"plugin/profile/data?{which}")

    steps = [row["c"][0]["v"] for row in page("overview_page")[1]["rows"]]
    assert steps == ["train 4", "train 5"]
    assert any("MatMul" in event["name"] for event in page("trace_viewer@")["traceEvents"])
