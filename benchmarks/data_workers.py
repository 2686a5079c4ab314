"""Measures how much faster data are generated with more worker processes.

    python benchmarks/data_workers.py --workers=1,2 --turns=3 --megabytes=8 --out=/tmp/data_workers

Each turn generates data from the standard library's `.py` files (a sample per line), once with each
number of workers; the files must always be the same. For each number of workers, the shortest times
of all turns are printed, because other programs can only lengthen them. Encoding begins when
the vocabulary is written, and ends with the last shard.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import resource
import shutil
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

from t2tp import problems

PROBLEM = "languagemodel_textfiles"


class Turn(NamedTuple):
    """Seconds that one generation of the data takes.

    Attributes:
      wall: wall time of everything.
      encoding: wall time from the vocabulary to the last shard.
      own: CPU time of the main process, which makes the vocabulary and, without workers, encodes.
      workers: CPU time of all workers together, including their starts.
      digest: hash of the files.
    """

    wall: float
    encoding: float
    own: float
    workers: float
    digest: str


def corpus(file: Path, megabytes: float) -> Path:
    """Writes the texts, truncated to the given size."""
    library = Path(sysconfig.get_path("stdlib"))
    sources = (path for path in sorted(library.rglob("*.py")) if "-packages" not in str(path))
    texts = b"".join(path.read_bytes() for path in sources)
    file.write_bytes(texts[: int(megabytes * 1e6)])
    return file


def generate(texts: Path, out: Path, workers: int) -> Turn:
    """Generates the data in this process and its workers."""
    problem = problems.find(PROBLEM, f"files={texts},documents=lines,vocab_size=1000")
    shutil.rmtree(out, ignore_errors=True)
    start = time.monotonic()
    # Some lines of the library's tests are not UTF-8.
    problem.prepare(out, num_workers=workers, max_bad_samples=10_000)
    wall = time.monotonic() - start
    files = sorted(path for path in out.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    (vocabulary,) = (path for path in files if path.name.startswith("vocabulary"))
    last = max(path.stat().st_mtime for path in files if path.name.startswith("train-"))
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = [each.ru_utime + each.ru_stime for each in (own, children)]
    return Turn(wall, last - vocabulary.stat().st_mtime, *cpu, digest)


def _send(texts: Path, out: Path, workers: int, results: multiprocessing.Queue) -> None:
    results.put(generate(texts, out, workers))


def in_new_process(texts: Path, out: Path, workers: int) -> Turn:
    """Generates the data in a process whose CPU times begin at zero."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_send, args=(texts, out, workers, results))
    process.start()
    turn = results.get()
    process.join()
    return turn


def main() -> None:
    """Prints a line per number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=30.0)
    arguments = parser.parse_args()
    numbers = [int(each) for each in arguments.workers.split(",")]
    arguments.out.mkdir(parents=True, exist_ok=True)
    texts = corpus(arguments.out / "library.txt", arguments.megabytes)
    turns: dict[int, list[Turn]] = {number: [] for number in numbers}
    for _ in range(arguments.turns):
        for number in numbers:
            turns[number].append(in_new_process(texts, arguments.out / "data", number))
    if len({turn.digest for each in turns.values() for turn in each}) > 1:
        raise SystemExit("the files differ")
    print(f"{texts.stat().st_size / 1e6:.0f} MB, {len(texts.read_bytes().splitlines())} samples")
    first = min(turn.encoding for turn in turns[numbers[0]])
    for number, each in turns.items():
        encoding = min(turn.encoding for turn in each)
        print(
            f"{number} workers: encoding {encoding:.1f} s ({first / encoding:.2f} times as fast),"
            f" everything {min(turn.wall for turn in each):.1f} s; CPU time of the workers"
            f" {min(turn.workers for turn in each):.1f} s, of the main process"
            f" {min(turn.own for turn in each):.1f} s"
        )


if __name__ == "__main__":
    main()
