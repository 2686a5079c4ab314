"""MFU: which share of what the devices could do at best the model's products are.

A. Chowdhery et al., "PaLM" (arXiv:2204.02311), section 4.1 and appendix B.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import tensorflow as tf

from t2tp.mesh.cluster import Cluster

# Dense peaks of the tensor cores in 10^12 FLOP/s, from NVIDIA's data sheets: of 16-bit floats (with
# sums in float32), and of float32 in the form of TF32 where there is that. The first name that is
# part of the device's counts.
_GPUS = {
    "H200": (989.4, 494.7),
    "H100 PCIe": (756.0, 378.0),
    "H100 NVL": (835.5, 417.8),
    "H100": (989.4, 494.7),
    "A100": (312.0, 156.0),
    "L40S": (362.1, 183.2),
    "V100": (125.0, 15.7),
    "T4": (65.1, 8.1),
}

_MEASURED_SIZE, _MEASURED_TURNS = 1024, 5


@dataclass(frozen=True)
class Peak:
    """What a mesh can do at best.

    Attributes:
      flops: floating-point operations a second, of all devices together.
      source: where the number comes from, for people.
    """

    flops: float
    source: str


@dataclass(frozen=True)
class Utilization:
    """What a step computes, and what the mesh could compute in its time.

    Attributes:
      forward_flops: of the products of the forward pass, on the whole mesh.
      peak: of the mesh.
    """

    forward_flops: int
    peak: Peak

    @property
    def step_flops(self) -> int:
        """Of forward and backward pass: each product has two in the backward pass."""
        return 3 * self.forward_flops

    def at(self, step_time: float) -> float:
        """The MFU of a step that takes so many seconds, 1 for all that is possible."""
        return self.step_flops / (step_time * self.peak.flops)

    def describe(self) -> str:
        """Formula and peak, in Markdown."""
        return (
            f"MFU = 3 x {self.forward_flops:.6g} FLOP / (step time x {self.peak.flops:.6g}"
            " FLOP/s)\n\n"
            "- The FLOP are those of the forward pass's einsums, convolutions and attentions,"
            " counted in the graph, a multiplication and an addition being two; causal attention"
            " counts whole. The backward pass is twice as many. Activations that are computed a"
            " second time do not count.\n"
            f"- The peak of all devices together: {self.peak.source}."
        )


def peak_of(cluster: Cluster, precision: str) -> Peak:
    """The peak of a mesh's devices.

    Args:
      cluster: the devices.
      precision: what products are computed in: float32, bfloat16 or float16.

    Returns:
      what the table says of known GPUs; else what a large product comes to, measured now.
    """
    number, device = len(cluster.devices), cluster.devices[cluster.local_pnums[0]]
    is_gpu = "GPU" in device
    name = _gpu_name() if is_gpu else ""
    for known, (half, single) in _GPUS.items():
        if is_gpu and known in name and (precision != "float32" or _uses_tf32(known)):
            of_one = 1e12 * (single if precision == "float32" else half)
            kind = "TF32" if precision == "float32" else precision
            source = f"{number} x {of_one / 1e12:g} TFLOP/s, {kind} without sparsity, of {name}"
            return Peak(number * of_one, f"{source}, by NVIDIA's data sheet")
    measured = _measured(device, precision)
    units = number if is_gpu else cluster.num_processes  # Virtual devices share a host.
    what = f"{name or 'GPU'}" if is_gpu else "host, whose cores its virtual devices share"
    size = f"{_MEASURED_SIZE} x {_MEASURED_SIZE}"
    return Peak(
        units * measured,
        f"{units} x {measured / 1e9:.4g} GFLOP/s, a product of two {precision} matrices of {size},"
        f" measured at the beginning on one {what}",
    )


def _gpu_name() -> str:
    gpu = tf.config.list_physical_devices("GPU")[0]
    return tf.config.experimental.get_device_details(gpu).get("device_name", "")


def _uses_tf32(name: str) -> bool:
    """Whether the table's number for float32 is what TensorFlow computes with."""
    has_tf32 = name not in ("V100", "T4")
    return not has_tf32 or tf.config.experimental.tensor_float_32_execution_enabled()


def _measured(device: str, precision: str) -> float:
    """FLOP/s of a product on a device: the fastest of a few."""
    with tf.device(device):
        x = tf.ones([_MEASURED_SIZE, _MEASURED_SIZE], precision)
        seconds = []
        for _ in range(_MEASURED_TURNS + 1):  # The first one prepares the others.
            begin = time.perf_counter()
            float(tf.matmul(x, x)[0, 0])
            seconds.append(time.perf_counter() - begin)
    return 2 * _MEASURED_SIZE**3 / min(seconds[1:])
