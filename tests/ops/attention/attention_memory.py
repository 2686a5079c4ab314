"""Prints how many bytes of memory a forward and backward pass of attention needs.

It runs in a process of its own, because a process can measure its peak only once.
"""

import sys

import numpy as np

import t2tp
from t2tp import mtf
from t2tp.ops.attention.api import attention
from tests.peak_memory import peak_bytes

HEADS, D_KV = 2, 16


def program_of(method: str, length: int) -> t2tp.Program:
    shape = f"batch:1;heads:{HEADS};length:{length};d_kv:{D_KV}"

    def step(mesh, given):
        y = attention(given["q"], given["k"], given["v"], causal=True, method=method)
        grads = mtf.gradients([mtf.reduce_sum(mtf.square(y))], [given[name] for name in "qkv"])
        return {"sum": sum(mtf.reduce_sum(d) for d in grads)}

    return t2tp.Program(step, {name: t2tp.Feature(shape) for name in "qkv"})


def run(method: str, length: int) -> int:
    # TensorFlow's own allocations in the first step must not count.
    inputs = [np.ones([1, HEADS, size, D_KV], np.float32) for size in (1024, length)]
    float(program_of(method, 1024)(dict.fromkeys("qkv", inputs[0]))["sum"])
    program = program_of(method, length)
    program.trace()
    before = peak_bytes()
    float(program(dict.fromkeys("qkv", inputs[1]))["sum"])
    return peak_bytes() - before


def main() -> None:
    print(run(sys.argv[1], int(sys.argv[2])))
