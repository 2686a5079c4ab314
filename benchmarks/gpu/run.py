"""Checks and times t2tp on one GPU, compared with PyTorch and JAX, as docs/gpu.md describes.

    python benchmarks/gpu/run.py [--stages=plain,loops] [--seconds=600] [--json=FILE] [--toy]
    python benchmarks/gpu/run.py --stages= --json=FILE    # prints the table of stored figures

Each stage answers one question in at most two minutes. The stages run in the order of their
importance, as long as `--seconds` last; a stage that would not fit is left out, and named. The JSON
file is rewritten after each measurement, and keeps the figures of earlier calls. The directory
`--artifacts` gets XLA's optimized HLO of each measured program, compressed.

The processes of a comparison compile in parallel and are then timed one after the other, so that
each has the card for itself. A process that fails, such as a peer that is not installed, is stored
as failed. `--toy`, the default without a GPU, runs everything at sizes that only test the programs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpt

HERE = Path(__file__).parent
# In the order of their importance.
STAGES = {
    "plain": "rows of one segment, one step in a launch",
    "packed": "rows of five segments of odd lengths",
    "loops": "eight steps in a launch",
    "trainer": "the Estimator, with eight steps in a launch, with and without op determinism",
    "second_start": "the Estimator twice with one cache of compiled programs",
    "peers": "PyTorch and JAX",
    "calibrate": "t2tp_calibrate of the card",
    "decode": "decoding",
    "matmul": "the peak rate of bfloat16 matmuls",
    "long": "1.3B at length 1024 and 124M at 2048, with the peers",
    "tests": "the engine's tests; not a part of the ten minutes",
}
STAGE_SECONDS, TESTS_SECONDS = 120, 1800
LEAST_SECONDS = 40  # A stage with less time would only compile.

# (model, length, batch). The processes of a stage fit on a card of 140 GB together.
TRAIN = (("1.3B", 2048, 2), ("124M", 1024, 16))
LONG = (("1.3B", 1024, 4), ("124M", 2048, 8))
TOY_TRAIN = (("tiny", 64, 4),)
LOOP = 8
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
    """A process with a program of this directory, which may wait after its warm-up.

    The process is killed at `deadline`, in seconds of `time.monotonic`. XLA writes the HLO of its
    programs into `dump`.
    """

    def __init__(
        self,
        peer: str,
        program: str,
        arguments: Mapping[str, Any],
        deadline: float,
        dump: Path | None = None,
        waits: bool = True,
    ) -> None:
        options = [f"--{name}={value}" for name, value in arguments.items()]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        # Else XLA leaves CUDA graphs while a profiler runs, and the profile shows another program.
        xla_flags = [os.environ.get("XLA_FLAGS", "")]
        xla_flags.append("--xla_enable_command_buffers_during_profiling=true")
        if dump is not None:
            xla_flags += [f"--xla_dump_to={dump}", "--xla_dump_hlo_as_text"]
        is_tensorflow = python_of(peer) == sys.executable and peer not in ENVIRONMENTS
        self._process = subprocess.Popen(
            [
                *(python_of(peer), str(HERE / f"{program}.py")),
                *(["--waits"] if waits else []),
                *options,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ
            | {
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            }
            | ({"XLA_FLAGS": " ".join(xla_flags).strip()} if is_tensorflow else {}),
        )
        self._killer = threading.Timer(max(0, deadline - time.monotonic()), self._process.kill)
        self._killer.daemon = True
        self._killer.start()

    def is_ready(self) -> bool:
        """Waits until the process has warmed up; returns False if it failed."""
        return self._process.stdout.readline().strip() == "READY"

    def results(self) -> dict[str, Any]:
        """Lets the process continue after its warm-up; returns its results, or how it failed."""
        output, _ = self._process.communicate("\n")
        self._killer.cancel()
        if output and not self._process.returncode:
            return json.loads(output.splitlines()[-1])
        self._errors.seek(0)
        text = "\n".join(self._errors.read().strip().splitlines()[-12:])
        is_late = self._process.returncode == -signal.SIGKILL
        return {"failed": f"{'killed at the end of the stage' if is_late else ''}\n{text}".strip()}


def compared(
    measured: Sequence[Measured], deadline: float, artifacts: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the results of each process: all warm up in parallel, then each is timed alone."""
    with tempfile.TemporaryDirectory() as scratch:
        dumps = [Path(scratch, str(i)) for i in range(len(measured))]
        runs = [
            Run(each.peer, each.program, each.arguments, deadline, dump)
            for each, dump in zip(measured, dumps, strict=True)
        ]
        for run in runs:
            run.is_ready()
        for each, run, dump in zip(measured, runs, dumps, strict=True):
            result = run.results() | {"batch": each.arguments["batch"]}
            hlo = store_hlo(dump, artifacts / f"{each.name.replace(' ', '_')}.hlo.txt.gz")
            if "longest_ms" in result:
                result["operations"] = operations_of(result["longest_ms"], hlo)
            yield each.name, result


def store_hlo(dump: Path, path: Path) -> str:
    """Compresses the largest optimized program of a dump into a file; returns the program."""
    programs = sorted(dump.glob("*after_optimizations.txt"), key=lambda p: p.stat().st_size)
    if not programs:
        return ""
    text = programs[-1].read_text("utf-8", "replace")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))
    return text


def operations_of(kernels: Mapping[str, float], hlo: str) -> dict[str, str]:
    """Returns the TensorFlow operation of each kernel that has the name of an HLO instruction."""
    named = re.findall(r"%?([\w.\-]+) = .*?op_name=\"([^\"]*)\"", hlo)
    by_name = {re.sub(r"\W", "_", name): operation for name, operation in named}
    keys = {kernel: re.sub(r"\W", "_", kernel) for kernel in kernels}
    return {kernel: by_name[key] for kernel, key in keys.items() if key in by_name}


def run_tests(paths: Sequence[str], on_gpu: bool) -> dict[str, Any]:
    """Runs the engine's tests; with T2TP_TEST_GPU=1, they split the GPU into eight devices."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *paths]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        timeout=TESTS_SECONDS,
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


def _trained(
    stage: str,
    cases: Sequence[tuple[str, int, int]],
    peers: Mapping[str, str],
    on_gpu: bool,
    **options: Any,
) -> Iterator[Measured]:
    for model, length, batch in cases:
        steps = 40 if on_gpu else 5
        sized = {"model": model, "length": length, "batch": batch, "steps": steps, **options}
        for peer, program in peers.items():
            yield Measured(f"{stage} {model} length {length} {peer}", peer, program, sized)


def _decoded(on_gpu: bool) -> Iterator[Measured]:
    model = "124M" if on_gpu else "tiny"
    length, new = (512, 256) if on_gpu else (48, 16)
    for batch in DECODE_BATCHES:
        sized = {"model": model, "batch": batch, "length": length, "new_tokens": new, "steps": 3}
        for peer, program in DECODERS.items():
            yield Measured(f"decode {model} batch {batch} {peer}", peer, program, sized)


def measurements(
    stage: str, on_gpu: bool, deadline: float, artifacts: Path
) -> Iterator[tuple[str, Any]]:
    """Yields the name of each measurement of a stage, with its figures or why it failed."""
    cases, ours = TRAIN if on_gpu else TOY_TRAIN, {"t2tp": PEERS["t2tp"]}
    others = {peer: program for peer, program in PEERS.items() if peer != "t2tp"}
    options = {
        "plain": {},
        "packed": {"segments": "packed"},
        "loops": {"loop": LOOP, "segments": "packed"},
    }
    if stage in options:
        runs = [*_trained(stage, cases, ours, on_gpu, **options[stage])]
        yield from compared(runs, deadline, artifacts)
    elif stage == "peers":
        yield from compared([*_trained("train", cases, others, on_gpu)], deadline, artifacts)
    elif stage == "long":
        long = LONG if on_gpu else TOY_TRAIN
        yield from compared([*_trained("train", long, PEERS, on_gpu)], deadline, artifacts)
    elif stage in ("trainer", "second_start"):
        model, length, batch = cases[-1]
        sized = {"model": model, "length": length, "batch": batch, "segments": "packed"}
        sized |= {"steps": 80 if on_gpu else 5, "loop": LOOP}
        with tempfile.TemporaryDirectory() as cache:
            changes = {
                f"deterministic {is_on}": {"deterministic": is_on} for is_on in ("no", "yes")
            }
            if stage == "second_start":
                changes = {f"start {number}": {"cache": cache} for number in (1, 2)}
            for name, change in changes.items():
                run = Run("t2tp", "trainer_t2tp", sized | change, deadline, waits=False)
                yield (
                    f"{stage} {model} length {length} {name}",
                    run.results() | {"batch": batch, **change},
                )
    elif stage == "calibrate":
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory, "machine.toml")
            program = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_calibrate"]
            command = [*program, f"--output={output}"]
            yield stage, _calibrated(command, output, deadline)
    elif stage == "matmul":
        sized = {"size": 8192 if on_gpu else 256}
        yield stage, Run("t2tp", "matmul", sized, deadline).results()
    elif stage == "decode":
        yield from compared([*_decoded(on_gpu)], deadline, artifacts)
    elif stage == "tests":
        yield stage, run_tests(TESTS if on_gpu else TOY_TESTS, on_gpu)


def _calibrated(command: Sequence[str], output: Path, deadline: float) -> dict[str, Any]:
    """Runs the calibration; returns the text of the cluster file, or how it failed."""
    try:
        limit = deadline - time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": "it did not end within the stage"}
    if done.returncode:
        return {"failed": done.stderr.strip()[-600:]}
    return {"summary": "measured", "cluster_file": output.read_text("utf-8")}


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
        line += f", first step {result['first_step']:.1f} s"
        kind, model, *_ = name.split()
        if kind != "decode":
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
    default = [stage for stage in STAGES if stage != "tests"]
    parser.add_argument("--stages", default=",".join(default), help=", ".join(STAGES))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--json", default="gpu.json")
    parser.add_argument("--artifacts", default="gpu_artifacts", help="directory for the HLO")
    parser.add_argument("--toy", action="store_true", help="sizes that only test the programs")
    args = parser.parse_args()
    stages = [stage for stage in args.stages.split(",") if stage]
    unknown = sorted({*stages} - {*STAGES})
    if unknown:
        parser.error(f"unknown stages {', '.join(unknown)}; there are {', '.join(STAGES)}")
    on_gpu = has_gpu() and not args.toy
    card = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    what = subprocess.check_output(card, text=True).strip() if on_gpu else "no GPU: toy sizes"
    figures: dict[str, Any] = {}
    if Path(args.json).exists():
        stored = json.loads(Path(args.json).read_text())
        if stages and stored["device"] != what:
            parser.error(f"{args.json} has the figures of {stored['device']}; this is {what}")
        what, figures = stored["device"], stored["figures"]
    end = time.monotonic() + args.seconds
    for stage in stages:
        seconds = STAGE_SECONDS if on_gpu and stage != "tests" else TESTS_SECONDS
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{stage}: left out, {left:.0f} s are left", file=sys.stderr)
            continue
        deadline = time.monotonic() + min(left, seconds)
        for name, result in measurements(stage, on_gpu, deadline, Path(args.artifacts)):
            figures[name] = result
            Path(args.json).write_text(json.dumps({"device": what, "figures": figures}, indent=1))
            print(
                f"{name}: {'failed' if 'failed' in result else 'done'}", file=sys.stderr, flush=True
            )
    print("\n".join([what, *table(figures)]))


if __name__ == "__main__":
    main()
