"""JAX's calls of cuDNN's attention: the cases of `jax_calls.json`, from `tools/jax_calls.py`."""

import json
import re

BATCH, HEADS, LENGTH, D_KV = 2, 4, 48, 32
# name -> causal, window, has segments, has a bias
CASES = {
    "none": (False, None, False, False),
    "causal": (True, None, False, False),
    "window": (True, 8, False, False),
    "segments": (False, None, True, False),
    "causal_segments": (True, None, True, False),
    "window_segments": (True, 8, True, False),
    "bias": (True, None, False, True),
}
SEGMENTS = [[1] * 5 + [2] + [3] * 42, [4] * 30 + [0] * 18]
MAX_SEGMENTS = 4


def calls_of(hlo: str) -> list[dict]:
    """Returns target, shapes with layouts, and configuration of each custom call of an HLO text."""
    calls = []
    for line in hlo.splitlines():
        found = re.search(r"= (.*) custom-call\((.*?)\), custom_call_target=\"(__cudnn.*?)\"", line)
        if found:
            shapes = r"\w+\[[\d,]*\]\{[\d,]*\}"
            results, _, target = found.groups()
            operands = re.search(r"operand_layout_constraints=\{(.*?\})\}", line)[1]
            config = json.loads(line[line.index("backend_config=") + len("backend_config=") :])
            calls.append(
                {
                    "target": target,
                    "operands": re.findall(shapes, operands),
                    "results": re.findall(shapes, results),
                    "config": config["cudnn_fmha_backend_config"],
                }
            )
    return calls
