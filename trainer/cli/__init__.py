"""The command-line programs.

`programs.toml` describes each program: its name, its flags and the module that does its work.
`run_program()` runs a program: it reads the command line, answers `--help` and `--version`, finds
the processes of the run, and turns errors into one sentence and an exit code. The module that does
the work is imported only after the command line has been checked, because most of these modules
import TensorFlow, which takes seconds.

| exit code | |
| --- | --- |
| 0 | done |
| 1 | the program failed, or `t2tp_inspect_checkpoint` found differences |
| 2 | the request is not valid, and nothing was written; or a problem such as a full disk |
| 3 | another process of the run was lost |
| 127 | `t2tp_launch`: the command cannot be started |
| 129 | ended by SIGHUP (a closed terminal); a training saves its step first |
| 130 | interrupted with Ctrl-C (SIGINT); a training saves its step first |
| 141 | stdout is a pipe that its reader closed |
| 143 | ended by SIGTERM; a training saves its step first |

`t2tp_launch` returns the code of the first failure that is not the loss of another process, or 3 if
there is no such failure. If no trial succeeds, `t2tp_tune` returns the exit code of the trial that
failed last.
"""
