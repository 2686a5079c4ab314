"""A process holds its part of a model, and nobody ever the whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import t2tp
from tests.models.small_lm import make_batch, training_program
from tests.program.slices_of_a_model import LAYER_BYTES

PROCESSES, FEW, MANY = 8, 1, 16
PER_WEIGHT = 3  # Adam keeps two numbers besides the weight.


def peaks_and_losses(num_layers, directory):
    """Largest memory of any process, and the losses, which all processes must agree on."""
    command = ["t2tp.trainer.cli", "t2tp_launch", "-n", str(PROCESSES), sys.executable, "-m"]
    program = ["tests.program.slices_of_a_model", str(num_layers), str(directory)]
    # glibc keeps freed blocks of up to 32 MB for later, how many depends on what runs at the same
    # time. With a fixed threshold they go back at once, and the peak is of what is held.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(
        [sys.executable, "-m", *command, *program],
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [json.loads(line) for line in re.findall(r"\{\"peak.*\}", done.stdout)]
    assert len(said) == PROCESSES
    ((first, second, again),) = {tuple(each["losses"]) for each in said}
    assert second < first
    assert again == second  # after the checkpoint of before was restored
    return max(each["peak"] for each in said)


@pytest.mark.parametrize("optimizer", ["adam", "adafactor", "sgd"])
def test_a_device_holds_what_the_shapes_of_weights_and_slots_say(optimizer):
    program = training_program("data:2;model:2", optimizer=optimizer)
    program(make_batch())
    said = {line.what: line for line in t2tp.explain(program).data.memory()}
    kept = [said["variables"], said["optimizer slots"]]
    for pnum, device in enumerate(program.cluster.devices):
        slices = [v.slice_of(pnum) for v in program.variables]
        assert {x.device.rpartition("/")[2] for x in slices} == {device.rpartition("/")[2]}
        assert sum(x.numpy().nbytes for x in slices) == sum(line.on_device for line in kept)
    # All but positions and norms is split in two; the data axis splits no weights.
    assert 0.5 < kept[0].on_device / kept[0].whole < 0.6


@pytest.mark.slow
def test_eight_processes_share_a_model_of_a_gigabyte(tmp_path):
    """Initialised, trained, saved and restored, 15 more layers cost each process an eighth of their
    weights and slots: 360 MB of 2.9 GB."""
    grown = peaks_and_losses(MANY, tmp_path / "many") - peaks_and_losses(FEW, tmp_path / "few")
    share = (MANY - FEW) * LAYER_BYTES * PER_WEIGHT / PROCESSES
    assert MANY * LAYER_BYTES >= 1 << 30
    assert 0.5 * share < grown < 1.1 * share
