"""Compares what language models learn in equal processor seconds in t2tp, nanoGPT and nanochat.

`peers/training.py` describes how each learner searches for its learning rate and trains. The
results of a learner are stored when it ends, and a learner with stored results does not run again.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from suite import hardware
from suite.results import write_whole
from suite.turns import HERE, AbsentError, Peer

STORED = "learning/runs.json"
DATA_DIR = HERE / "data_learning"
# Seconds after which a learner without an answer has failed; on a shared machine it may be slow.
PATIENCE = 7200.0
# Size of the benchmark -> size of the model, and budget in seconds.
SIZES = {"design": ("text", 30.0), "tiny": ("tiny_text", 1.0)}
_ADAM, _MUON = ["--optimizer=adam", "--first_rate=0.004"], "--optimizer=muon"
# Name -> the program in `peers/` and its arguments.
LEARNERS = {
    "t2tp, Muon": ("learning_ours", [_MUON, "--first_rate=0.03"]),
    "nanoGPT, eager": ("nanogpt", _ADAM),
    "nanoGPT, compiled": ("nanogpt", [*_ADAM, "--compile"]),
    "t2tp, Adam": ("learning_ours", _ADAM),
    "nanoGPT, torch's Muon": ("nanogpt", [_MUON, "--first_rate=0.008"]),
    "nanochat": ("nanochat", [_MUON, "--first_rate=0.02"]),
}
# Learner -> another learner that takes the same steps, and whose best rate it uses.
TUNED_AS = {"nanoGPT, compiled": "nanoGPT, eager"}
OURS = [name for name, (program, _) in LEARNERS.items() if program == "learning_ours"]


def run(directory: Path, size: str) -> bool:
    """Runs learners without stored results; returns whether all of t2tp's have results."""
    path = directory / STORED
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = json.loads(path.read_text("utf-8")) if path.exists() else {"learners": {}}
    model, seconds = SIZES[size]
    options = [f"--size={model}", f"--data_dir={DATA_DIR}", f"--seconds={seconds}"]
    if "bytes" not in stored:
        stored |= {"machine": hardware.describe() | {"size": size, "seconds": seconds}}
        stored |= _answer("learning_ours", [*options, *_ADAM, "--prepare"])
    for name, (program, arguments) in LEARNERS.items():
        if name in stored["learners"]:
            continue
        if tuned := stored["learners"].get(TUNED_AS.get(name)):
            arguments = [*arguments, f"--rate={tuned['runs'][-1]['rate']}"]
        try:
            answer = _answer(program, [*options, *arguments])
        except AbsentError as error:
            print(f"learning: {name} is absent: {error}", flush=True)
            continue
        for each in answer["runs"]:
            per_nat = 1 / math.log(2) / stored["bytes"]
            each["curve"] = [(step, round(nats * per_nat, 4)) for step, nats in each["curve"]]
        stored["learners"][name] = answer
        write_whole(path, json.dumps(stored, indent=1) + "\n")
        print(f"{name}: {answer['runs'][-1]['curve'][-1][1]} bits per byte", flush=True)
    return all(name in stored["learners"] for name in OURS)


def _answer(program: str, arguments: list[str]) -> dict:
    """Runs a program, and returns its report.

    Raises:
      AbsentError: the program fails.
    """
    peer = Peer("", program, arguments, "" if program == "learning_ours" else "torch")
    try:
        peer.start(PATIENCE)
    finally:
        peer.stop()
    return peer.facts
