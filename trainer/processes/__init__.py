"""The processes of a run: starting them, restarting them, and stopping them together.

`t2tp_launch` (`t2tp.trainer.cli.launch`) starts the processes of this host, and starts them again
after a failure:

- `local_processes`: starts this host's processes, copies their output, and ends them.
- `children`: forwards signals to child processes, and ends the children when their parent ends.

Inside each process of a training:

- `multiprocess`: joins the other processes and checks that all have the same settings.
- `interrupt`: finishes the step and saves it on SIGTERM, SIGHUP and SIGINT.
"""
