"""Runs two processes up to a phase and stays in it: `python -m tests.processes.phases PHASE`.

joining: process 1 does not come to the rendezvous.
starting: the TensorFlow server of process 0 listens, and waits for the server of process 1.
connected: both processes have joined.
stepping: both run steps.

A process prints `there` when it is in the phase.
"""

import os
import socket
import sys
import time

from t2tp.processes import coordination
from t2tp.processes.cluster import connect
from t2tp.processes.process_spec import find_process_spec, split_address
from tests.processes import one_process


def stay() -> None:
    print("there", flush=True)
    while True:
        time.sleep(0.05)


def start_late(client: coordination.CoordinationClient, nccl: bool) -> None:
    """Waits until TensorFlow's server of process 0 listens, and then for a file, or forever."""
    while not is_grpc(client.addresses[0]):
        time.sleep(0.02)
    if "START_WHEN" in os.environ:
        print("there", flush=True)
        while not os.path.exists(os.environ["START_WHEN"]):
            time.sleep(0.05)
        return start(client, nccl)
    stay()


def is_grpc(address: str) -> bool:
    """Returns whether a gRPC server listens at an address; its first byte is 0."""
    try:
        with socket.create_connection(split_address(address, ""), timeout=5.0) as connection:
            return connection.recv(1) == b"\0"
    except OSError:
        return False


def main(phase: str) -> None:
    spec = find_process_spec()
    if phase == "joining" and spec.process_id == 1:
        stay()
    if phase == "joining":
        print("there", flush=True)
    if phase == "starting" and spec.process_id == 1:
        coordination.CoordinationClient._start = start_late
    cluster = connect(2)
    print("connected", flush=True)
    if phase == "stepping":
        program = one_process.program(cluster, "data:2")
        for step in range(10**9):
            float(program({"x": one_process.X}, step=step)["loss"])
            if step == 0:
                print("there", flush=True)
    if phase != "starting" or "START_WHEN" not in os.environ:
        stay()
    time.sleep(10**6)


if __name__ == "__main__":
    start = coordination.CoordinationClient._start
    main(sys.argv[1])
