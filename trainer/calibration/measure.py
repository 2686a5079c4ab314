"""Times small steps on this machine, and describes it as a cluster file of shares.

A step of one kind of operation takes its FLOPs at a share of the peak, or its bytes at a share of
the bandwidth. The peak and the bandwidth are the fastest measured rates, so no share is above 1.
"""

import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client import device_lib

import t2tp
from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.mesh.collective_kinds import collective_kind
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import Cluster, has_gpu
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Program
from t2tp.step.kernels import own_kernels
from t2tp.step.lowered import LoweredStep
from t2tp.step.memory import RESERVED
from t2tp.step.work import COMPUTE_BOUND, ELEMENTWISE
from t2tp.trainer.calibration import samples

# Bytes of memory that TensorFlow uses on a host before a program begins.
_HOST_RESERVED = 500e6
# Target seconds of a program (long enough that tensors are rarely in a cache, as in a real step),
# and the max number of its operations.
_WANTED, _MOST_OPERATIONS = 0.12, 96
_CALLS = 8
# Number of rounds of measurements. The shortest times count: other users of a shared machine may
# slow it down by a third for some seconds.
_ROUNDS = 3
# Number of float32 values in the input of a collective: one is bound by latency, one by bandwidth.
_FEW, _MANY = 1 << 10, 1 << 20
# The dimension of that input, which the devices split into such parts.
_NUMBERS = "numbers"
_VARIABLES = 300
_FED = {"one": np.zeros([1], np.float32)}
_FEATURES = {"one": t2tp.Feature("one:1")}

Build = Callable[[Mesh], mtf.Tensor]


class Measured:
    """The measurements of this machine.

    Attributes:
      is_gpu: whether the device is a GPU; else it is the cores of this machine, taken together.
      devices: number of devices between which collectives are measured.
      rates: FLOP/s or bytes/s by kind of work.
      launch: seconds between two operations.
    """

    def __init__(self) -> None:
        self.is_gpu = has_gpu()
        gpus = tf.config.list_physical_devices("GPU") if self.is_gpu else ()
        self.devices = len(gpus) or cores()
        self.rates: dict[str, float] = {}
        self.launch = 0.0
        self._counts: dict[str, int] = {}
        self._shortest: dict[str, float] = {}
        if not self.is_gpu:
            # Else `connect` gives each of several devices its part of the cores. It is too late if
            # TensorFlow is initialized already.
            with contextlib.suppress(RuntimeError):
                tf.config.threading.set_intra_op_parallelism_threads(cores())
        self._cluster = t2tp.connect(self.devices)
        self._kernels = own_kernels(1, on_cpu=not self.is_gpu)

    def run(self) -> Iterator[str]:
        """Measures; yields the name of each measurement after it."""
        for _ in range(_ROUNDS):
            yield from self._round()

    def _round(self) -> Iterator[str]:
        self._empty = self._seconds("empty", lambda mesh: mtf.get_variable(mesh, "x", ""))
        for sample in samples.SAMPLES:
            self._measure(sample)
            yield sample.kind
        many = self._seconds("variables", samples.many_variables(_VARIABLES))
        self.host = (many - self._empty) / _VARIABLES
        yield "host"
        self.latency, self.link = 1e-6, max(self.rates.values())
        if self.devices > 1:
            few, many = (self._collective(numbers) for numbers in (_FEW, _MANY))
            kind = collective_kind("allreduce")
            self.latency = few / max(1.0, sum(kind.messages([self.devices])))
            moved = 4 * _MANY * kind.sent_bytes(self.devices)
            # All devices use the memory of a host at once, and a GPU has its own link.
            sharing = 1 if self.is_gpu else self.devices
            self.link = sharing * moved / max(many - few, many / 10)
        yield "collectives"

    def _measure(self, sample: samples.Sample) -> None:
        """Measures the rate of a kind of work, in a program that is long enough to be timed."""
        size = sample.gpu_size if self.is_gpu else sample.size
        if sample.kind not in self._counts:
            few = self._seconds(f"two of {sample.kind}", lambda mesh: sample.build(mesh, size, 2))
            count = round(2 * _WANTED / max(few - self._empty, 1e-5))
            self._counts[sample.kind] = max(2, min(_MOST_OPERATIONS, count))
        count = self._counts[sample.kind]
        build: Build = lambda mesh: sample.build(mesh, size, count)  # noqa: E731
        seconds = max(self._seconds(sample.kind, build) - self._empty, 1e-5)
        own = others = 0.0
        program = AbstractProgram(_step(build), _FEATURES, layout=Layout("", ""))
        for work, number in LoweredStep.from_program(program, software=self._kernels).work.items():
            if work.kind == sample.kind:
                own += number * work.times * (work.flops or work.num_bytes)
            elif rate := self.rates.get(work.kind):
                others += number * work.times * (work.flops or work.num_bytes) / rate
        self.rates[sample.kind] = own / max(seconds - others, seconds / 10)
        if sample.kind == ELEMENTWISE and not self.is_gpu:
            # Operations on few elements take the time of their launch.
            tiny = self._seconds("tiny", lambda mesh: sample.build(mesh, 1, _MOST_OPERATIONS))
            self.launch = max(0.0, tiny - self._empty) / (6 * _MOST_OPERATIONS)

    def _collective(self, numbers: int) -> float:
        """Returns the seconds of an all-reduce over all devices, in a chain of matmuls."""
        mesh, count = f"{samples.GROUP}:{self.devices}", 8
        shape = mtf.Shape([mtf.Dimension(_NUMBERS, numbers * self.devices)])

        def chain(kind: str) -> Build:
            return lambda mesh: samples.CollectiveSample(
                mtf.get_variable(mesh, "x", shape), kind, count
            ).outputs[0]

        alone = self._seconds(f"matmuls {numbers}", chain(""), mesh)
        both = self._seconds(f"allreduce {numbers}", chain("allreduce"), mesh)
        return max(both - alone, both / 100) / count

    def _seconds(self, name: str, build: Build, mesh: str = "") -> float:
        """Returns the seconds of the shortest call of a program, in this and earlier rounds."""
        layout = Layout(mesh, f"{_NUMBERS}:{samples.GROUP}" if mesh else "")
        devices = self._cluster if mesh else Cluster(self._cluster.devices[:1])
        step = _step(lambda mesh: mtf.reduce_sum(build(mesh)))
        program = Program(step, _FEATURES, layout=layout, cluster=devices)
        fed, taken = program.place(_FED), []
        for _ in range(_CALLS + 2):
            begin = time.perf_counter()
            float(program(fed)["last"])
            taken.append(time.perf_counter() - begin)
        self._shortest[name] = min(*taken[2:], self._shortest.get(name, math.inf))
        return self._shortest[name]

    def cluster_table(self) -> dict[str, Any]:
        """Returns the table of this machine's cluster file."""
        fastest = {
            bound: max(
                rate for kind, rate in self.rates.items() if (kind in COMPUTE_BOUND) == bound
            )
            for bound in (True, False)
        }
        shares = {kind: rate / fastest[kind in COMPUTE_BOUND] for kind, rate in self.rates.items()}
        device: dict[str, Any] = {"name": "this machine", "cores": 0, "reserved": RESERVED}
        peak = {"float32": round(fastest[True])}
        if self.is_gpu:
            gpu = next(d for d in device_lib.list_local_devices() if d.device_type == "GPU")
            device |= {"name": gpu.physical_device_desc, "memory": float(gpu.memory_limit)}
            peak = {"bfloat16": peak["float32"], "float16": peak["float32"]}
        else:
            device |= {"name": _processor(), "cores": cores(), "reserved": _HOST_RESERVED}
            device["memory"] = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        device |= {"bandwidth": round(fastest[False]), "launch": self.launch, "peak": peak}
        link = {"name": "inside a host", "bandwidth": round(self.link), "latency": self.latency}
        stack = {
            "own": True,
            "fuses": self._kernels.fuses,
            "attention": "kernel" if self.is_gpu else "engine",
            "host": min(max(self.host, 0.0), 1e-3) if self.is_gpu else 0.0,
            "link": 1.0,
            "shares": shares,
        }
        return {
            "name": "this machine",
            "host_devices": self.devices if self.is_gpu else 4 * cores(),
            "source": "measured by t2tp_calibrate",
            "device": device,
            "links": [{**link, "shared_by_all": not self.is_gpu}],
            "stacks": {"t2tp": stack},
        }


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def steps() -> int:
    """Returns the number of measurements of `Measured.run`."""
    return _ROUNDS * (len(samples.SAMPLES) + 2)


def _step(build: Build) -> Callable[..., dict[str, mtf.Tensor]]:
    """Returns a step that computes a tensor and reads no features."""
    return lambda mesh, features: {"last": build(mesh)}


def _processor() -> str:
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return match[1] if match else "CPU"
