"""The environment in which TensorFlow's CPU kernels compute the same bits in any slice.

TensorFlow reads these variables when it is imported. `exact_sums` needs them.
"""

import functools
import re
from pathlib import Path

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
# TensorFlow's contractions use a matmul of oneDNN even if TF_ENABLE_ONEDNN_OPTS is 0. Its code for
# AVX2 rounds a row differently if the matrix has other rows; its code for AVX and for AVX-512 does
# not (measured with TensorFlow 2.21).
ISA = "AVX"


@functools.cache
def needs_isa() -> bool:
    """Whether oneDNN would use its code for AVX2 on this processor."""
    try:
        flags = set(re.findall(r"\bavx\w*", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    except OSError:
        return False
    return "avx2" in flags and "avx512f" not in flags


def variables() -> dict[str, str]:
    """Returns the environment variables by name."""
    isa = {ISA_VARIABLE: ISA} if needs_isa() else {}
    return {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_NUM_INTRAOP_THREADS": "1", **isa}
