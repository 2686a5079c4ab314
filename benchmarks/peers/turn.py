"""The peer's side of a benchmark: waits for its turn, runs its steps, and reports their seconds.

A peer prints one JSON line when it has warmed up, and one for each turn. It reads the number of
steps of the next turn from standard input.

A peer with several processes (--processes) starts itself once for each, with torchrun's variables
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. In a turn, all processes run; the first one prints.

A peer that calls `imported` also reports how much more memory it has at the peak than at that call.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from language_model import SIZES, Sizes

WARM_UP_STEPS = 3
PROFILED_STEPS = 5

# Environment variables that this peer's usual launcher sets for its processes.
environment: dict[str, str] = {}

# The arguments of every peer.
PARSER = argparse.ArgumentParser()
PARSER.add_argument("--size", choices=SIZES, default="design")
PARSER.add_argument("--batch", type=int, help="other than the size's own")
PARSER.add_argument("--data", type=int, default=1, help="devices that split the batch")
PARSER.add_argument("--model", type=int, default=1, help="devices that split the weights")
PARSER.add_argument("--stages", type=int, default=1, help="devices that split the layers")
PARSER.add_argument("--chunks", type=int, default=1, help="of layers in each stage")
PARSER.add_argument("--microbatches", type=int, default=1)
PARSER.add_argument("--processes", type=int, default=1, help="that bring the devices")
PARSER.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
PARSER.add_argument("--xla", action="store_true")
PARSER.add_argument("--profile", help="directory for TensorFlow's profile of some steps")


def arguments() -> argparse.Namespace:
    """Parses the command line. With --processes, starts the processes; returns only in these."""
    args = PARSER.parse_args()
    if args.processes > 1 and "RANK" not in os.environ:
        sys.exit(_start_processes(args.processes))
    return args


def sizes(args: argparse.Namespace) -> Sizes:
    """Returns the sizes that the command line selects."""
    chosen = SIZES[args.size]
    return dataclasses.replace(chosen, batch=args.batch) if args.batch else chosen


def share_of_cores(count: int) -> int:
    """Returns the threads for each of `count` workers on the cores that we may use."""
    return max(1, len(os.sched_getaffinity(0)) // count)


def say(facts: Mapping[str, object]) -> None:
    """Reports the facts of a peer that takes no turns."""
    print(json.dumps(facts), flush=True)


_memory_at_first: int | None = None


def imported() -> None:
    """Notes the current memory, which is subtracted from the peak; call it after all imports."""
    global _memory_at_first
    _memory_at_first = _resident("VmRSS")


def _resident(what: str) -> int:
    """Returns the resident bytes of this process: now (VmRSS), or at the peak (VmHWM)."""
    with open("/proc/self/status") as status:
        found = re.search(rf"{what}:\s+(\d+) kB", status.read())
    assert found is not None
    return int(found[1]) * 1024


def take_turns(step: Callable[[], float], **facts: object) -> None:
    """Warms up, then runs steps when asked.

    Args:
      step: function that runs a step to its end and returns its loss; 0 if it has none.
      **facts: further facts to report, such as versions.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print to stdout, too.
    start = time.perf_counter()
    losses = [step()]
    first_step = time.perf_counter() - start
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    losses += [step() for _ in range(WARM_UP_STEPS)]
    facts |= {"first_step": first_step, "warming_up": time.perf_counter() - start}
    facts |= _of_the_kernel(used)
    if _memory_at_first is not None:
        args = PARSER.parse_args()
        in_process = args.stages * args.data * args.model // args.processes
        facts["peak_memory"] = (_resident("VmHWM") - _memory_at_first) / in_process
    directory = PARSER.parse_args().profile
    if directory:
        _profile(step, directory)
    if any(losses):
        facts["losses"] = losses
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), file=answers, flush=True)


def _of_the_kernel(before: resource.struct_rusage) -> dict[str, float]:
    """Returns the means of a warm-up step: seconds in the kernel, and number of page faults."""
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "kernel_seconds": (after.ru_stime - before.ru_stime) / WARM_UP_STEPS,
        "page_faults": (after.ru_minflt - before.ru_minflt) / WARM_UP_STEPS,
    }


def _profile(step: Callable[[], float], directory: str) -> None:
    """Records TensorFlow's profile of some steps."""
    import tensorflow as tf

    # Processes on one machine would write to the same file.
    directory = os.path.join(directory, os.environ.get("RANK", "0"))
    with tf.profiler.experimental.Profile(directory):
        for number in range(PROFILED_STEPS):
            with tf.profiler.experimental.Trace("benchmark_step", step_num=number):
                step()


def _start_processes(count: int) -> int:
    """Starts this program in `count` processes, and forwards each turn to all of them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    own = os.environ | environment | {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    # As with t2tp_launch, the processes together have as many threads as a single process.
    own |= dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), str(share_of_cores(count)))
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            stdin=subprocess.PIPE,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            text=True,
            env=own | {"RANK": str(rank), "WORLD_SIZE": str(count)},
        )
        for rank in range(count)
    ]
    threading.Thread(target=_end_if_one_fails, args=(processes,), daemon=True).start()
    for line in sys.stdin:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    return max(abs(process.wait()) for process in processes)


def _end_if_one_fails(processes: list[subprocess.Popen]) -> None:
    """Ends all processes if one fails, because all others would wait for it forever."""
    while not any(codes := [process.poll() for process in processes]):
        time.sleep(0.1)
    for process in processes:
        process.kill()
    os._exit(max(abs(code) for code in codes if code))
