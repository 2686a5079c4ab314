"""Checks and times t2tp on one GPU, compared with PyTorch and JAX, as docs/gpu.md describes.

    python benchmarks/gpu/run.py [--stages=tests,matmul,train,profile,decode] [--json=FILE]

Each measurement is a process of its own, so that each has the card for itself. The short table is
printed last, the full figures are in the JSON file, which is rewritten after each measurement.
Without a GPU everything runs at toy sizes, as a test of these programs themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STAGES = ("tests", "matmul", "train", "profile", "decode")
SECONDS = 540.0  # of the longest measurement

# Largest first: the first batch that fits is taken, by each for itself.
TRAIN = {
    "124M": {1024: (64, 32, 16), 2048: (32, 16, 8)},
    "1.3B": {1024: (16, 8, 4), 2048: (8, 4, 2)},
}
TOY_TRAIN = {"tiny": {64: (4,)}}
DECODE_BATCHES = (1, 16, 64)
PEERS = {"t2tp": "train_t2tp", "PyTorch": "train_torch", "JAX": "train_jax"}
DECODERS = {"t2tp": "decode_t2tp", "Hugging Face": "decode_hf"}
ENVIRONMENTS = {"PyTorch": "torch", "JAX": "jax", "Hugging Face": "torch"}

TESTS = ("tests/mesh", "tests/ops", "tests/layers", "tests/models", "tests/optim")
TOY_TESTS = ("tests/ops/test_softmax.py",)


class FailedError(Exception):
    """A measurement did not come to an end."""


def has_gpu() -> bool:
    """Whether the driver sees a card."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def python_of(peer: str) -> str:
    """The Python of a peer's environment, or this one where it has none."""
    own = HERE.parent / "environments" / ENVIRONMENTS.get(peer, "") / "bin" / "python"
    return str(own) if peer in ENVIRONMENTS and own.exists() else sys.executable


def ask(peer: str, program: str, *arguments: str) -> dict[str, Any]:
    """Runs a program of this directory; returns its answer.

    Raises:
      FailedError: it failed; with its last words.
    """
    command = [python_of(peer), str(HERE / f"{program}.py"), *arguments]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"took longer than {SECONDS:.0f} s") from None
    if done.returncode or not done.stdout:
        raise FailedError("\n".join((done.stderr.strip() or "no message").splitlines()[-8:]))
    return json.loads(done.stdout.splitlines()[-1])


def train(peer: str, model: str, length: int, batches: Sequence[int], steps: int) -> dict[str, Any]:
    """A peer's training, with the largest batch that fits."""
    failures = []
    for batch in batches:
        sized = [f"--model={model}", f"--length={length}", f"--batch={batch}", f"--steps={steps}"]
        try:
            return {"batch": batch, **ask(peer, PEERS[peer], *sized), "failures": failures}
        except FailedError as error:
            failures.append(f"batch {batch}: {error}")
    raise FailedError(" | ".join(failures))


def run_tests(paths: Sequence[str], on_gpu: bool) -> dict[str, Any]:
    """The engine's tests on the GPU, cut into eight; collectives go in rings there."""
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


def measurements(stages: Sequence[str], on_gpu: bool) -> Iterator[tuple[str, Any]]:
    """(name, figures or why there are none), one after the other."""
    sizes = TRAIN if on_gpu else TOY_TRAIN
    steps = 20 if on_gpu else 3
    jobs: list[tuple[str, Any]] = []
    if "matmul" in stages:
        size = 8192 if on_gpu else 256
        jobs.append(("matmul", lambda: ask("t2tp", "matmul", f"--size={size}")))
    if "train" in stages:
        jobs += [
            (
                f"train {model} length {length} {peer}",
                lambda peer=peer, model=model, length=length, batches=batches: train(
                    peer, model, length, batches, steps
                ),
            )
            for model, lengths in sizes.items()
            for length, batches in lengths.items()
            for peer in PEERS
        ]
    if "profile" in stages:
        jobs += [
            (
                f"profile {model}",
                lambda model=model, length=length, batch=batches[-1]: ask(
                    "t2tp",
                    "profile_t2tp",
                    f"--model={model}",
                    f"--length={length}",
                    f"--batch={batch}",
                ),
            )
            for model, lengths in sizes.items()
            for length, batches in list(lengths.items())[:1]
        ]
    if "decode" in stages:
        model = "124M" if on_gpu else "tiny"
        length, new = (512, 256) if on_gpu else (48, 16)
        jobs += [
            (
                f"decode {model} batch {batch} {peer}",
                lambda peer=peer, batch=batch: ask(
                    peer,
                    DECODERS[peer],
                    f"--model={model}",
                    f"--batch={batch}",
                    f"--length={length}",
                    f"--new_tokens={new}",
                    "--steps=3",
                ),
            )
            for batch in DECODE_BATCHES
            for peer in DECODERS
        ]
    if "tests" in stages:
        jobs.append(("tests", lambda: run_tests(TESTS if on_gpu else TOY_TESTS, on_gpu)))
    for name, job in jobs:
        try:
            yield name, job()
        except FailedError as error:
            yield name, {"failed": str(error)}


def table(figures: dict[str, Any]) -> list[str]:
    """The short table: a line for each measurement."""
    sys.path.insert(0, str(HERE))
    from gpt import MODELS

    matmul = figures.get("matmul", {})
    peak = matmul["flops"] / statistics.median(matmul["seconds"]) if "seconds" in matmul else None
    lines = []
    if peak:
        lines.append(f"matmul bfloat16: {peak / 1e12:.1f} TFLOP/s")
    for name, result in figures.items():
        if name == "matmul" and peak:
            continue
        if "tokens_per_second" not in result:
            text = result.get("summary") or result.get("shares") or result.get("failed")
            lines.append(f"{name}: {str(text)[:300]}")
            continue
        rate = result["tokens_per_second"]
        line = f"{name}: {rate:,.0f} tokens/s, {result['peak_bytes'] / 2**30:.1f} GiB at most"
        kind, model, *_ = name.split()
        if kind == "train":
            length = int(name.split()[3])
            line += f", batch {result['batch']}, first loss {result['losses'][0]:.3f}"
            if peak:
                mfu = rate * MODELS[model].flops_per_token(length) / peak
                line += f", MFU {mfu:.1%} of the matmul rate"
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--json", default="gpu.json")
    args = parser.parse_args()
    stages = args.stages.split(",")
    unknown = sorted({*stages} - {*STAGES})
    if unknown:
        parser.error(f"unknown stages {', '.join(unknown)}; there are {', '.join(STAGES)}")
    on_gpu = has_gpu()
    card = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    what = subprocess.check_output(card, text=True).strip() if on_gpu else "no GPU: toy sizes"
    figures: dict[str, Any] = {}
    for name, result in measurements(stages, on_gpu):
        figures[name] = result
        Path(args.json).write_text(json.dumps({"device": what, "figures": figures}, indent=1))
        print(f"{name}: done", file=sys.stderr, flush=True)
    print("\n".join([what, *table(figures)]))


if __name__ == "__main__":
    main()
