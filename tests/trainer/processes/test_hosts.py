"""A run on several hosts loses one of them, and continues with one host and then with two."""

import os
import sys
from pathlib import Path

import pytest

from t2tp.checkpoint import all_steps
from tests import network
from tests.patience import wait_until
from tests.trainer.processes import stopping_hooks
from tests.trainer.small_run import assert_same, flags

ROOT = Path(__file__).parents[3]
LAUNCH = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_launch"]
TRAINER = """
import sys
from t2tp.trainer.cli.programs import t2tp_trainer
from tests.trainer import tiny_problem
sys.exit(t2tp_trainer())
"""
STEPS = 9


@pytest.mark.slow
@pytest.mark.ci_only  # test_one_curve.py has the same on one host.
@pytest.mark.skipif(bool(network.missing()), reason=network.missing())
def test_a_lost_host_and_other_numbers_of_hosts_change_no_bit(tmp_path: Path, data_dir: Path):
    """The run has two hosts, of which one loses power, then one host, and then two."""
    hooks = stopping_hooks.make(tmp_path)
    saved = tmp_path / "run/checkpoints"

    def command(run: str) -> list[str]:
        more = {"train_steps": STEPS, "save_checkpoints_steps": 2, "hooks": "stopping"}
        given = flags(tmp_path / run, data_dir, t2t_usr_dir=hooks, **more)
        return [sys.executable, "-c", TRAINER, *given]

    with network.Network(2) as hosts, (tmp_path / "said").open("w") as output:

        def start(count: int, run: str = "run", **more: str) -> list:
            # A process has a thread for each of its devices.
            own = {"TF_NUM_INTRAOP_THREADS": str(4 // count), "T2TP_SECRET": "for a test"}
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **own, **more}
            if count == 1:
                return [hosts.start(0, command(run), environment, output)]
            addresses = ",".join(f"{network.address(host)}:8470" for host in range(count))
            launch = [*LAUNCH, "-n", "1", f"--hosts={addresses}"]
            commands = [[*launch, f"--host_id={host}", *command(run)] for host in range(count)]
            return [hosts.start(i, each, environment, output) for i, each in enumerate(commands)]

        said = tmp_path / "said"
        (alone,) = start(1, "alone")
        assert alone.wait() == 0, said.read_text()
        first, _ = start(2, HOLD_AT="5")
        wait_until(lambda: saved.is_dir() and 4 in all_steps(saved), said)
        hosts.power_off(1)
        assert first.wait() == 3, said.read_text()
        hosts.power_on(1)
        (fewer,) = start(1, HOLD_AT="7")
        wait_until(lambda: 6 in all_steps(saved), said)
        hosts.power_off(0)
        hosts.power_on(0)
        assert [process.wait() for process in start(2)] == [0, 0], said.read_text()
        assert fewer.returncode != 0

    assert_same(tmp_path / "run", tmp_path / "alone", STEPS)
