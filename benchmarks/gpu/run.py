"""Checks and times t2tp on one GPU, compared with PyTorch and JAX, as docs/gpu.md describes.

    python benchmarks/gpu/run.py [--stages=tests,matmul,train,decode] [--json=FILE]
    python benchmarks/gpu/run.py --stages= --json=FILE    # prints the table of stored figures

The processes of a comparison compile in parallel and are then timed one after the other, so that
each has the card for itself. A process that fails runs again, without other processes. The table is
printed last; the full figures are in the JSON file, which is rewritten after each comparison and
keeps the figures of earlier stages. Without a GPU, everything runs at toy sizes, which only tests
that the programs work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpt

HERE = Path(__file__).parent
STAGES = ("tests", "matmul", "train", "decode")

# Tuples of comparisons (model, length, batch) whose processes are on the card at the same time.
# They fit on a card of 140 GB together.
TRAIN = ((("124M", 1024, 16), ("124M", 2048, 8)), (("1.3B", 2048, 2),), (("1.3B", 1024, 4),))
TOY_TRAIN = ((("tiny", 64, 4),),)
DECODE_BATCHES = (1, 16, 64)
PEERS = {"t2tp": "train_t2tp", "PyTorch": "train_torch", "JAX": "train_jax"}
DECODERS = {"t2tp": "decode_t2tp", "Hugging Face": "decode_hf"}
ENVIRONMENTS = {"PyTorch": "torch", "JAX": "jax", "Hugging Face": "torch"}

TESTS = ("tests/mesh", "tests/ops", "tests/layers", "tests/models", "tests/optim")
TOY_TESTS = ("tests/ops/test_traffic.py",)


def has_gpu() -> bool:
    """Returns whether the driver sees a card."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class Measured:
    """The measurement of one process: a name for the table, and the program of the process."""

    name: str
    peer: str
    program: str
    arguments: Mapping[str, Any]


def python_of(peer: str) -> str:
    """Returns the Python of a peer's environment, or this Python if the peer has none."""
    own = HERE.parent / "environments" / ENVIRONMENTS.get(peer, "") / "bin" / "python"
    return str(own) if peer in ENVIRONMENTS and own.exists() else sys.executable


class Run:
    """A process with a program of this directory, which waits after its warm-up."""

    def __init__(self, peer: str, program: str, arguments: Mapping[str, Any]) -> None:
        options = [f"--{name}={value}" for name, value in arguments.items()]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python_of(peer), str(HERE / f"{program}.py"), "--waits", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ
            | {
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            },
        )

    def is_ready(self) -> bool:
        """Waits until the process has warmed up; returns False if it failed."""
        return self._process.stdout.readline().strip() == "READY"

    def results(self) -> dict[str, Any]:
        """Lets the process continue after its warm-up; returns its results, or how it failed."""
        output, _ = self._process.communicate("\n")
        if output and not self._process.returncode:
            return json.loads(output.splitlines()[-1])
        self._errors.seek(0)
        return {"failed": "\n".join(self._errors.read().strip().splitlines()[-12:])}


def compared(measured: Sequence[Measured]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the results of each process: all warm up in parallel, then each is timed alone."""
    runs = [Run(each.peer, each.program, each.arguments) for each in measured]
    for run in runs:
        run.is_ready()
    results = [run.results() for run in runs]
    for each, result in zip(measured, results, strict=True):
        if "failed" in result:
            result = Run(each.peer, each.program, each.arguments).results()
        yield each.name, result | {"batch": each.arguments["batch"]}


def run_tests(paths: Sequence[str], on_gpu: bool) -> dict[str, Any]:
    """Runs the engine's tests; with T2TP_TEST_GPU=1, they split the GPU into eight devices."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *paths]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=HERE.parent.parent,
        env=os.environ | ({"T2TP_TEST_GPU": "1"} if on_gpu else {}),
    )
    lines = done.stdout.splitlines()
    return {
        "summary": lines[-1] if lines else done.stderr[-300:],
        "failed": [line for line in lines if line.startswith(("FAILED", "ERROR"))],
        "seconds": time.perf_counter() - start,
    }


def _trained(together: Sequence[tuple[str, int, int]], steps: int) -> Iterator[Measured]:
    for model, length, batch in together:
        sized = {"model": model, "length": length, "batch": batch, "steps": steps}
        for peer, program in PEERS.items():
            yield Measured(f"train {model} length {length} {peer}", peer, program, sized)


def _decoded(on_gpu: bool) -> Iterator[Measured]:
    model = "124M" if on_gpu else "tiny"
    length, new = (512, 256) if on_gpu else (48, 16)
    for batch in DECODE_BATCHES:
        sized = {"model": model, "batch": batch, "length": length, "new_tokens": new, "steps": 3}
        for peer, program in DECODERS.items():
            yield Measured(f"decode {model} batch {batch} {peer}", peer, program, sized)


def measurements(stages: Sequence[str], on_gpu: bool) -> Iterator[tuple[str, Any]]:
    """Yields the name of each measurement, with its figures or the reason why it failed."""
    if "matmul" in stages:
        sized = {"size": 8192 if on_gpu else 256}
        yield "matmul", Run("t2tp", "matmul", sized).results()
    if "train" in stages:
        for together in TRAIN if on_gpu else TOY_TRAIN:
            yield from compared([*_trained(together, steps=20 if on_gpu else 5)])
    if "decode" in stages:
        yield from compared([*_decoded(on_gpu)])
    if "tests" in stages:
        yield "tests", run_tests(TESTS if on_gpu else TOY_TESTS, on_gpu)


def table(figures: dict[str, Any]) -> list[str]:
    """Returns the lines of the table, one for each measurement."""
    matmul = figures.get("matmul", {})
    peak = matmul["flops"] / statistics.median(matmul["seconds"]) if "seconds" in matmul else None
    lines = []
    if peak:
        lines.append(f"matmul bfloat16: {peak / 1e12:.1f} TFLOP/s")
    for name, result in figures.items():
        if name == "matmul" and peak:
            continue
        if "tokens_per_second" not in result:
            text = result.get("summary") or result.get("failed")
            lines.append(f"{name}: {str(text)[-300:]}")
            continue
        rate = result["tokens_per_second"]
        line = f"{name}: {rate:,.0f} tokens/s, {result['peak_bytes'] / 2**30:.1f} GiB at most"
        kind, model, *_ = name.split()
        if kind == "train":
            length = int(name.split()[3])
            line += f", batch {result['batch']}, first loss {result['losses'][0]:.3f}"
            if peak:
                mfu = rate * gpt.MODELS[model].flops_per_token(length) / peak
                line += f", MFU {mfu:.1%} of the matmul rate"
            if "fractions" in result:
                line += f", {result['fractions']}"
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--json", default="gpu.json")
    args = parser.parse_args()
    stages = [stage for stage in args.stages.split(",") if stage]
    unknown = sorted({*stages} - {*STAGES})
    if unknown:
        parser.error(f"unknown stages {', '.join(unknown)}; there are {', '.join(STAGES)}")
    on_gpu = has_gpu()
    card = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    what = subprocess.check_output(card, text=True).strip() if on_gpu else "no GPU: toy sizes"
    figures: dict[str, Any] = {}
    if Path(args.json).exists():
        stored = json.loads(Path(args.json).read_text())
        if stages and stored["device"] != what:
            parser.error(f"{args.json} has the figures of {stored['device']}; this is {what}")
        what, figures = stored["device"], stored["figures"]
    for name, result in measurements(stages, on_gpu):
        figures[name] = result
        Path(args.json).write_text(json.dumps({"device": what, "figures": figures}, indent=1))
        print(f"{name}: done", file=sys.stderr, flush=True)
    print("\n".join([what, *table(figures)]))


if __name__ == "__main__":
    main()
