"""The memory in use during training."""

import os
import resource
from pathlib import Path

import tensorflow as tf

from t2tp.processes.cluster import Cluster

_GB = 1e9


def memory_in_use(cluster: Cluster) -> dict[str, float]:
    """Returns the current and the peak memory use of this process's devices, in 10^9 bytes.

    For each GPU, returns the memory that TensorFlow's allocator has handed out, as
    `memory_gb/processor_0` and `memory_gb/processor_0_peak`. For virtual CPU devices, returns the
    resident set of the process, as `memory_gb/process` and `memory_gb/process_peak`.
    """
    num_bytes = {}
    for pnum in cluster.local_pnums:
        if "GPU" in cluster.devices[pnum]:
            info = tf.config.experimental.get_memory_info(cluster.devices[pnum])
            num_bytes[f"processor_{pnum}"] = info["current"]
            num_bytes[f"processor_{pnum}_peak"] = info["peak"]
    if not num_bytes:
        resident = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        num_bytes["process"] = resident * os.sysconf("SC_PAGE_SIZE")
        num_bytes["process_peak"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {f"memory_gb/{name}": size / _GB for name, size in num_bytes.items()}
