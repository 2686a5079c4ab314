"""`t2tp_launch`: starts a command as several processes of one run."""

import functools
import os
import sys

from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.processes.addresses import hosts_of
from t2tp.trainer.processes.launcher import run_rounds
from t2tp.trainer.processes.local_processes import check_gpus, environments_of, visible_gpus

NO_SUCH_COMMAND = 127  # As in shells.


def run(invocation: Invocation) -> int:
    """Starts the processes and waits for them.

    Returns:
      The exit code of `run_rounds`, or `NO_SUCH_COMMAND` if the command cannot be started.
    """
    flags, command = invocation.flags, invocation.arguments
    count, devices = flags.num_processes, flags.devices_per_process
    with as_usage_error(ValueError):
        hosts, host_id = hosts_of(flags.hosts, flags.host_id)
        gpus = visible_gpus()
        check_gpus(count, devices, gpus)
    environments = functools.partial(
        environments_of, count, devices, os.environ, gpus, hosts, host_id
    )
    try:
        return run_rounds(command, environments, host_id * count, flags.max_restarts)
    except OSError as error:
        print(f"t2tp_launch: {command[0]}: {error.strerror}", file=sys.stderr)
        return NO_SUCH_COMMAND
