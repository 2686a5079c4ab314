"""MFU: model FLOPs per second as a fraction of the devices' peak.

The definition is from A. Chowdhery et al., "PaLM" (arXiv:2204.02311), section 4.1 and appendix B.
"""

import time
from dataclasses import dataclass

import tensorflow as tf

from t2tp.processes.cluster import Cluster

# Dense tensor-core peaks in 10^12 FLOP/s from NVIDIA's data sheets: 16-bit floats (accumulated in
# float32), and float32 as TF32 where supported. The first key that occurs in the device's name
# applies.
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
class Utilization:
    """The FLOPs of a step and the peak of the mesh.

    Attributes:
      forward_flops: FLOPs of the forward pass's matmuls, on the whole mesh.
      peak: FLOP/s of all devices together.
      source: where the peak comes from, as text.
    """

    forward_flops: int
    peak: float
    source: str

    def at(self, step_time: float) -> float:
        """Returns the MFU, 0 to 1, of a step of this many seconds."""
        # The backward pass has two matmuls for each matmul of the forward pass.
        return 3 * self.forward_flops / (step_time * self.peak)

    def describe(self) -> str:
        """Describes formula and peak in Markdown."""
        return (
            f"MFU = 3 x {self.forward_flops:.6g} FLOP / (step time x {self.peak:.6g}"
            " FLOP/s)\n\n"
            "- The FLOP are the forward pass's: einsums, convolutions and attentions,"
            " counted in the graph, a multiply-add being two; causal attention counts in full."
            " The backward pass has twice that number. Recomputed activations do not count.\n"
            f"- The peak of all devices together: {self.source}."
        )


def peak_of(cluster: Cluster, precision: str) -> tuple[float, str]:
    """Determines the peak of a mesh's devices for matmuls of float32, bfloat16 or float16.

    Returns FLOP/s and their source: the tabulated peak of known GPUs. For other devices, and for
    float32 matmuls on a GPU whose TF32 is disabled, the measured rate of a large matmul.
    """
    number, device = len(cluster.devices), cluster.devices[cluster.local_pnums[0]]
    is_gpu = "GPU" in device
    name = _gpu_name() if is_gpu else ""
    for known, (half, single) in _GPUS.items():
        if is_gpu and known in name and (precision != "float32" or _uses_tf32(known)):
            flops = 1e12 * (single if precision == "float32" else half)
            kind = "TF32" if precision == "float32" else precision
            source = f"{number} x {flops / 1e12:g} TFLOP/s, {kind} without sparsity, of {name}"
            return number * flops, f"{source}, by NVIDIA's data sheet"
    measured = _measured(device, precision)
    units = number if is_gpu else cluster.num_processes  # Virtual devices share a host.
    what = f"{name or 'GPU'}" if is_gpu else "host, whose cores its virtual devices share"
    size = f"{_MEASURED_SIZE} x {_MEASURED_SIZE}"
    return (
        units * measured,
        f"{units} x {measured / 1e9:.4g} GFLOP/s, a matmul of two {precision} matrices of {size},"
        f" measured at the beginning on one {what}",
    )


def _gpu_name() -> str:
    gpu = tf.config.list_physical_devices("GPU")[0]
    return tf.config.experimental.get_device_details(gpu).get("device_name", "")


def _uses_tf32(name: str) -> bool:
    """Whether TensorFlow computes float32 matmuls as the table assumes."""
    has_tf32 = name not in ("V100", "T4")
    return not has_tf32 or tf.config.experimental.tensor_float_32_execution_enabled()


def _measured(device: str, precision: str) -> float:
    """Returns the FLOP/s of the fastest of several matmuls on a device."""
    with tf.device(device):
        x = tf.ones([_MEASURED_SIZE, _MEASURED_SIZE], precision)
        seconds = []
        for _ in range(_MEASURED_TURNS + 1):  # The first one warms up.
            begin = time.perf_counter()
            float(tf.matmul(x, x)[0, 0])
            seconds.append(time.perf_counter() - begin)
    return 2 * _MEASURED_SIZE**3 / min(seconds[1:])
