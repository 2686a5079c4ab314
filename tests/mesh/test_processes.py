"""Several processes, real ones: the numbers of a single one, and what happens when one is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from t2tp.checkpoint import Checkpoint, latest
from t2tp.mesh.cluster import connect
from t2tp.mesh.meeting import free_port
from tests.mesh import one_process

pytestmark = pytest.mark.slow

MESH = "data:2;model:2"
STEPS = 6
ENDS_WITHIN = 60.0  # Seconds, after another process was lost.


def by_arguments(number: int) -> list[tuple[dict, dict]]:
    """For each process: what `connect` is given, and the environment."""
    coordinator = f"localhost:{free_port()}"
    return [
        ({"num_processes": number, "process_id": i, "coordinator": coordinator}, {})
        for i in range(number)
    ]


def by_tf_config(number: int) -> list[tuple[dict, dict]]:
    cluster = {"worker": [f"localhost:{free_port()}" for _ in range(number)]}
    tasks = [{"type": "worker", "index": i} for i in range(number)]
    return [({}, {"TF_CONFIG": json.dumps({"cluster": cluster, "task": t})}) for t in tasks]


def by_slurm(number: int) -> list[tuple[dict, dict]]:
    step = {
        "SLURM_STEP_NUM_TASKS": str(number),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_JOB_ID": str(free_port() - 20_000),
    }
    return [({}, {**step, "SLURM_PROCID": str(i)}) for i in range(number)]


@contextmanager
def started(
    scenario: str, places: list[tuple[dict, dict]], **options: object
) -> Iterator[list[subprocess.Popen]]:
    """Processes that run a scenario; killed at the end."""
    connect_options = options.pop("connect", {})
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.mesh.one_process", scenario),
                json.dumps({"connect": {**given, **connect_options}, **options}),
            ],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for given, environment in places
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def results(scenario: str, places: list[tuple[dict, dict]], **options: object) -> list[dict]:
    """What each process printed."""
    with started(scenario, places, **options) as processes:
        said = [process.communicate(timeout=180) for process in processes]
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


def errors_of(survivor: subprocess.Popen, lost: subprocess.Popen) -> str:
    """The last line that a process says after another one has ended."""
    lost.wait(timeout=120)
    begin = time.monotonic()
    _, errors = survivor.communicate(timeout=ENDS_WITHIN)
    assert time.monotonic() - begin < ENDS_WITHIN
    assert survivor.returncode not in (0, -9)
    return errors.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def alone() -> dict:
    """What one process with all four devices does."""
    return one_process.train(connect(4), MESH, 2 * STEPS)


@pytest.mark.parametrize(
    ("number", "places"), [(2, by_arguments), (2, by_tf_config), (4, by_slurm)]
)
def test_any_number_of_processes_gives_the_numbers_of_one(number, places, alone, tmp_path):
    each = results("train", places(number), mesh_shape=MESH, steps=STEPS, directory=str(tmp_path))
    for process_id, found in enumerate(each):
        np.testing.assert_allclose(found["losses"], alone["losses"][:STEPS], rtol=1e-6)
        assert found["y"] == each[0]["y"]
        assert found["hidden"] == each[0]["hidden"]
        half = process_id * 2 // number
        assert found["rows"] == list(range(4 * half, 4 * half + 4))
        assert set(found["slices"].values()) == {4 // number}
    checkpoint = latest(tmp_path)
    checkpoint.verify()
    resumed = one_process.resume(connect(4), MESH, STEPS, str(tmp_path))
    np.testing.assert_allclose(resumed["losses"], alone["losses"][STEPS:], rtol=1e-6)


def test_whole_outputs_are_the_same(alone):
    short = one_process.train(connect(4), MESH, STEPS)
    (first, _) = results("train", by_arguments(2), mesh_shape=MESH, steps=STEPS)
    np.testing.assert_allclose(first["y"], short["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first["hidden"], short["hidden"], rtol=1e-5, atol=1e-6)


def test_what_one_process_saved_is_restored_in_four(alone, tmp_path):
    one_process.train(connect(4), MESH, STEPS, str(tmp_path))
    assert len(list(Checkpoint(tmp_path / "step-00000006").path.glob("variables.data-*"))) == 1
    each = results("resume", by_arguments(4), mesh_shape=MESH, steps=STEPS, directory=str(tmp_path))
    for found in each:
        np.testing.assert_allclose(found["losses"], alone["losses"][STEPS:], rtol=1e-6)


def test_a_language_model_gives_the_losses_of_one_process():
    wanted = one_process.lm(connect(4), MESH, STEPS)["losses"]
    for found in results("lm", by_arguments(2), mesh_shape=MESH, steps=STEPS):
        np.testing.assert_allclose(found["losses"], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("who", "how", "said"),
    [
        (1, "kill", "Process 1 of 2 .* is gone. Start again."),
        (0, "kill", "Process 0 of 2 .* is gone. Start again."),
        (1, "kill at a barrier", "Process 1 of 2 .* is gone. Start again."),
        (1, "kill beside a sleeper", "Process 1 .* is gone. .* did not end by itself .* Start aga"),
        (1, "raise", "Process 1 of 2 .* failed: OSError: the disk is full. Start again."),
        (1, "stop", "Process 1 of 2 .* does not answer. Start again."),
    ],
)
def test_when_a_process_is_lost_the_other_ends_and_says_so(who, how, said):
    with started("die", by_arguments(2), mesh_shape=MESH, who=who, how=how) as processes:
        if how == "stop":
            begin = time.monotonic()
            _, errors = processes[1 - who].communicate(timeout=120)
            assert time.monotonic() - begin < 120
            last = errors.strip().splitlines()[-1]
        else:
            last = errors_of(processes[1 - who], processes[who])
    assert re.search(said, last), last


def test_a_processor_that_does_not_come_is_named_with_the_collective():
    options = {"mesh_shape": MESH, "who": 1, "how": "hang", "connect": {"time_limit": 5}}
    with started("die", by_arguments(2), **options) as processes:
        _, errors = processes[0].communicate(timeout=120)
        last = errors.strip().splitlines()[-1]
        said = (
            r"Processor 0 \(process 0\) waited in the allreduce over mesh axis 'data' that"
            r" '\S+' needs for processor 2 \(process 1\), which did not come within 5 s."
        )
        assert re.search(said, last), last
        _, errors = processes[1].communicate(timeout=ENDS_WITHIN)
        assert "The others gave it up. Process 1 did not end by itself" in errors


def test_a_processor_that_hangs_is_named_in_a_single_process_too():
    options = {"mesh_shape": "data:4", "how": "hang", "connect": {"time_limit": 3}}
    with started("device", [({}, {})], **options) as (process,):
        _, errors = process.communicate(timeout=120)
    said = "Processors 0, 1, 2 waited in the allreduce over .* for processor 3, which did not come"
    assert re.search(said, errors.strip().splitlines()[-1]), errors


def test_a_failure_on_a_device_of_one_process_is_told_by_all():
    with started("device", by_arguments(2), mesh_shape="data:4", how="fail") as processes:
        said = [process.communicate(timeout=120)[1] for process in processes]
    assert "InvalidArgumentError" in said[1] and "on purpose" in said[1]
    last = said[0].strip().splitlines()[-1]
    assert re.search("Process 1 of 2 .* failed: InvalidArgumentError: .*on purpose", last), last


def test_a_mesh_that_the_processes_cannot_share_is_refused():
    places = by_arguments(3)
    with started("train", places, mesh_shape=MESH, steps=1) as processes:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            last = errors.strip().splitlines()[-1]
            assert "4 processors, which 3 processes cannot share equally" in last
