"""The processes of a run: starting them, restarting them, and stopping them together.

`t2tp_launch` starts the processes of this host:

- `addresses`: the addresses of all hosts, and the index of this host.
- `local_processes`: starts this host's processes, copies their output, and ends them.
- `launcher`: restarts after a failure.
- `children`: forwards signals to child processes, and ends the children when their parent ends.

Inside each process of a training:

- `multiprocess`: joins the other processes and checks that all have the same settings.
- `interrupt`: finishes the step and saves it on SIGTERM, SIGHUP and SIGINT.
"""
