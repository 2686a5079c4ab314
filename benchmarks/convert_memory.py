"""Measures the peak memory of t2tp_convert, on a model of 2 GB of random numbers.

    python benchmarks/convert_memory.py --directory=/tmp/convert_memory

Makes a Llama of about 2 GB in two files, converts it to a run and back, and compares all tensors.
For both conversions, and for `import tensorflow`, it prints two peaks: the memory that the process
has allocated, and its resident memory. Resident memory includes mapped pages of files, such as
TensorFlow's libraries and the model's files; the kernel drops these pages when memory is short. The
directory needs 6 GB; it is deleted at the end. The exit code is 1 if a conversion allocates more
than the size of the largest tensor plus 500 MB, or if a tensor has changed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t2tp.huggingface.known_types import find_type
from t2tp.huggingface.safetensors_file import create, read_header
from t2tp.huggingface.tensor_map import variables

# Largest allocation of a conversion, beyond the size of the largest tensor.
LIMIT_BYTES = 500_000_000

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 14,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "dtype": "float32",
}
_BLOCK = 1 << 20
_SECONDS = 0.002  # between two readings of a process's memory

_RUN = "import sys; from t2tp.trainer.cli.programs import t2tp_convert; sys.exit(t2tp_convert())"
_TENSORFLOW = "import tensorflow"


class Measured(NamedTuple):
    """Peak memory and duration of a process.

    Attributes:
      allocated: peak of its memory without pages of files, in bytes.
      resident: peak of all its memory, in bytes.
      seconds: duration.
    """

    allocated: int
    resident: int
    seconds: float

    def __str__(self) -> str:
        """Returns the figures in words."""
        return (
            f"peak {self.allocated / 1e6:.0f} MB allocated, {self.resident / 1e6:.0f} MB with pages"
            f" of files, {self.seconds:.0f} s"
        )


def write_model(directory: Path) -> int:
    """Writes a model of random numbers; returns the bytes of its largest tensor."""
    kind = find_type("llama")
    hparams = kind.hparams(CONFIG)
    pieces = [
        piece
        for each in variables(kind.tensors(hparams), kind.sizes(hparams), {})
        for piece in each.pieces
    ]
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    draw = np.random.default_rng(0)
    block = draw.normal(0, 0.02, _BLOCK).astype(np.float32)
    weight_map: dict[str, str] = {}
    largest = 0
    for number, half in enumerate((pieces[::2], pieces[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        made = create(directory / file, {each.theirs: ("F32", each.shape) for each in half})
        weight_map |= dict.fromkeys(made, file)
        for each in made.values():
            flat = each.opened("r+").reshape(-1)
            largest = max(largest, flat.nbytes)
            for begin in range(0, len(flat), _BLOCK):
                flat[begin : begin + _BLOCK] = np.roll(block, begin)[: len(flat) - begin]
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return largest


def measured(program: str, *flags: str) -> Measured:
    """Runs a process, and reads its memory again and again."""
    began, allocated, resident = time.monotonic(), 0, 0
    command = [sys.executable, "-c", program, *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            sizes = dict(re.findall(r"^(RssAnon|VmHWM):\s+(\d+) kB", status.read_text(), re.M))
            if sizes:  # A process that has ended has no sizes.
                allocated = max(allocated, 1024 * int(sizes["RssAnon"]))
                resident = max(resident, 1024 * int(sizes["VmHWM"]))
            time.sleep(_SECONDS)
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode} of {program} {' '.join(flags)}")
    return Measured(allocated, resident, time.monotonic() - began)


def is_same(one: Path, other: Path) -> bool:
    """Whether two directories have the same tensors, bit for bit."""
    both = [
        {
            name: info
            for file in path.glob("*.safetensors")
            for name, info in read_header(file).items()
        }
        for path in (one, other)
    ]
    return both[0].keys() == both[1].keys() and all(
        np.array_equal(info.opened(), both[1][name].opened()) for name, info in both[0].items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    directory = parser.parse_args().directory
    source, run, back = (directory / name for name in ("source", "run", "back"))
    try:
        largest = write_model(source)
        size = sum(file.stat().st_size for file in source.glob("*.safetensors"))
        print(f"model {size / 1e9:.2f} GB, largest tensor {largest / 1e6:.0f} MB", flush=True)
        ways = {
            "from_hf": (f"--from_hf={source}", f"--output_dir={run}"),
            "to_hf": (f"--to_hf={back}", f"--output_dir={run}"),
        }
        print(f"import tensorflow: {measured(_TENSORFLOW)}", flush=True)
        is_within = True
        for way, flags in ways.items():
            found = measured(_RUN, *flags)
            beyond = found.allocated - largest
            is_within &= beyond <= LIMIT_BYTES
            print(f"{way}: {found}; {beyond / 1e6:.0f} MB allocated beyond the largest tensor")
        same = is_same(source, back)
        print(f"there and back {'the same bits' if same else 'DIFFERENT'}")
        return 0 if is_within and same else 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
