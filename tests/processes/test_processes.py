"""Several real processes have the results of a single process, and end if one of them is lost."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from t2tp.checkpoint import latest
from t2tp.processes.cluster import connect
from t2tp.processes.rendezvous import free_port
from tests.processes import one_process
from tests.warm_processes import WarmProcess, started

pytestmark = pytest.mark.slow

MESH = "data:2;model:2"
STEPS = 6
# Constants of `t2tp.processes.coordination`, in seconds. The defaults are longer, because a machine
# may freeze for a while.
LIMITS = {"HEARTBEAT_SECONDS": 8, "ENDING_SECONDS": 4.0}


def places_of(number: int) -> list[dict]:
    """Returns the arguments of `connect` of each process."""
    coordinator = f"localhost:{free_port()}"
    return [
        {"num_processes": number, "process_id": i, "coordinator": coordinator}
        for i in range(number)
    ]


@pytest.fixture
def start(tmp_path: Path):
    """Returns a function that starts processes with a scenario and its options.

    A place is the arguments of `connect` of one process.
    """

    def run(scenario: str, places: list[dict], **options: object):
        arguments = [[scenario, json.dumps({"connect": place, **options})] for place in places]
        target = "tests.processes.one_process:main"
        return started(target, arguments, [{} for _ in places], tmp_path / "said")

    return run


def results(started) -> list[dict]:
    """Waits for processes, and returns the result that each has printed."""
    with started as processes:
        for process in processes:
            assert process.wait() == 0, process.err.read_text()
    return [json.loads(process.out.read_text().splitlines()[-1]) for process in processes]


def last_line(process: WarmProcess) -> str:
    """Waits for a process that fails, and returns the last line on its stderr."""
    assert process.wait() not in (0, -signal.SIGKILL)
    return process.err.read_text().strip().splitlines()[-1]


@pytest.fixture(scope="module")
def alone() -> dict:
    """Returns the results of one process with all four devices."""
    return one_process.train(connect(4), MESH, 2 * STEPS)


@pytest.mark.parametrize("number", [2, 4])
def test_any_number_of_processes_gives_the_numbers_of_one(number, start, alone, tmp_path):
    run = {"mesh_shape": MESH, "steps": STEPS, "directory": str(tmp_path / "run")}
    short = one_process.train(connect(4), MESH, STEPS)
    each = results(start("train", places_of(number), **run))
    for process_id, found in enumerate(each):
        np.testing.assert_allclose(found["losses"], alone["losses"][:STEPS], rtol=1e-6)
        for name in ("y", "hidden"):
            np.testing.assert_allclose(found[name], short[name], rtol=1e-5, atol=1e-6)
        half = process_id * 2 // number
        assert found["rows"] == list(range(4 * half, 4 * half + 4))
        assert set(found["slices"].values()) == {4 // number}
    checkpoint = latest(tmp_path / "run")
    checkpoint.verify()
    resumed = one_process.resume(connect(4), **run)
    np.testing.assert_allclose(resumed["losses"], alone["losses"][STEPS:], rtol=1e-6)


def test_what_each_says_all_hear_and_a_notice_reaches_everybody(start):
    heard = results(start("talk", places_of(3), processors=3))
    for process_id, found in enumerate(heard):
        said = [[f"{i}: {count}" for i in range(3)] for count in range(3)]
        assert found == {"said": said, "agreed": "by 0", "notice": "from 2"}, process_id


def test_a_copy_that_differs_in_another_process_is_named_by_all(start):
    for each in results(start("replicas", places_of(2), mesh_shape="data:4", processors=4)):
        assert each["before"] == 0
        (said,) = each["found"]
        assert re.match(r"variable 'w' differs on processor 2 \(.*task:1.*\) from .* 0, 1, 3", said)


def test_processes_that_build_the_program_in_another_order_are_told(start):
    """Both sums share a collective, so each process would get some of the other's addends."""
    for said in results(start("in_another_order", places_of(2), processors=2)):
        assert said.startswith("process 1 has built another program than process 0. It runs"), said


def test_one_of_several_processes_does_not_take_their_devices_for_its_own(start):
    """With the device names of a single process, TensorFlow would crash (segmentation fault)."""
    for said in results(start("connect_alone", places_of(2), processors=2)):
        assert "as in t2tp.Program(..., cluster=cluster)" in said


def test_on_one_host_only_this_host_can_connect(start):
    """Only TensorFlow's server listens on all interfaces, and it accepts only loopback clients."""
    for each in results(start("reach", places_of(2), processors=2)):
        assert set(each["found"]) == {str(each["own"])}
        reached = each["found"][str(each["own"])]
        assert reached.pop("127.0.0.1")
        assert not any(reached.values()), reached


CASES = [
    (1, "kill", "Process 1 of 2 .* is gone. Start again."),
    (0, "kill", "Process 0 of 2 .* is gone. Start again."),
    (1, "kill at a barrier", "Process 1 of 2 .* is gone. Start again."),
    (0, "kill before a barrier", "Process 0 of 2 .* is gone. Start again."),
    (1, "kill beside a sleeper", "Process 1 .* is gone. .* did not end by itself .* Start aga"),
    (1, "raise", "Process 1 of 2 .* failed: OSError: the disk is full. Start again."),
    (1, "stop", "Process 1 of 2 .* does not answer. Start again."),
]


@pytest.mark.parametrize(("who", "how", "said"), CASES)
def test_when_a_process_is_lost_the_other_ends_and_says_so(who, how, said, start):
    places = places_of(2)
    with start("die", places, mesh_shape=MESH, who=who, how=how, limits=LIMITS) as processes:
        if how != "stop":
            processes[who].wait()
        last = last_line(processes[1 - who])
    assert re.search(said, last), last


def test_a_processor_that_does_not_come_is_named_with_the_collective(start):
    run = {"mesh_shape": MESH, "who": 1, "how": "hang", "limits": LIMITS, "time_limit": 3}
    with start("die", places_of(2), **run) as (first, second):
        last = last_line(first)
        said = (
            r"Processor 0 \(process 0\) waited in the allreduce over mesh axis 'data' that"
            r" '\S+' needs for processor 2 \(process 1\), which did not come within 3 s."
        )
        assert re.search(said, last), last
        last = last_line(second)
        assert "The others gave it up. Process 1 did not end by itself" in last


def test_a_processor_that_hangs_is_named_in_a_single_process_too(start):
    run = {"mesh_shape": "data:4", "how": "hang", "time_limit": 3}
    with start("device", [{}], **run) as (process,):
        last = last_line(process)
    said = "Processors 0, 1, 2 waited in the allreduce over .* for processor 3, which did not come"
    assert re.search(said, last), last


def test_a_failure_on_a_device_of_one_process_is_told_by_all(start):
    with start("device", places_of(2), mesh_shape="data:4", how="fail") as (first, second):
        last = last_line(first)
        assert re.search("Process 1 of 2 .* failed: InvalidArgumentError: .*on purpose", last), last
        assert second.wait() == 1
        said = second.err.read_text()
        assert "InvalidArgumentError" in said and "on purpose" in said


def test_a_mesh_that_the_processes_cannot_share_is_refused(start):
    with start("train", places_of(3)[:1], mesh_shape=MESH, steps=1) as (process,):
        assert "4 processors, which 3 processes cannot share equally" in last_line(process)
