"""A process holds its part of a model, and nobody ever the whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.mesh.slices_of_a_model import LAYER_BYTES

PROCESSES, FEW, MANY = 8, 1, 16
PER_WEIGHT = 3  # Adam keeps two numbers besides the weight.


def peaks_and_losses(num_layers, directory):
    """Largest memory of any process, and the losses, which all processes must agree on."""
    command = ["t2tp.trainer.t2tp_launch", "-n", str(PROCESSES), sys.executable, "-m"]
    program = ["tests.mesh.slices_of_a_model", str(num_layers), str(directory)]
    done = subprocess.run(
        [sys.executable, "-m", *command, *program], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [json.loads(line) for line in re.findall(r"\{\"peak.*\}", done.stdout)]
    assert len(said) == PROCESSES
    ((first, second, again),) = {tuple(each["losses"]) for each in said}
    assert second < first
    assert again == second  # after the checkpoint of before was restored
    return max(each["peak"] for each in said)


@pytest.mark.slow
def test_eight_processes_share_a_model_of_a_gigabyte(tmp_path):
    """Initialised, trained, saved and restored, 15 more layers cost each process an eighth of their
    weights and slots: 360 MB of 2.9 GB."""
    grown = peaks_and_losses(MANY, tmp_path / "many") - peaks_and_losses(FEW, tmp_path / "few")
    share = (MANY - FEW) * LAYER_BYTES * PER_WEIGHT / PROCESSES
    assert MANY * LAYER_BYTES >= 1 << 30
    assert 0.5 * share < grown < 1.1 * share
