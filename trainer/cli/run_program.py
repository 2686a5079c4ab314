"""Runs a program: parses flags, answers `--help`, and turns errors into exit codes."""

import contextlib
import errno
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from absl import flags as absl_flags

from t2tp.object_store import mirror
from t2tp.object_store.store import StoreError
from t2tp.processes import exact_environment, process_spec
from t2tp.processes.process_spec import ProcessSpec
from t2tp.processes.signals import sigint_ends
from t2tp.quiet import quiet_import, quiet_stderr
from t2tp.trainer import compilation_cache, errors, run_yaml
from t2tp.trainer.cli import console, flag_groups
from t2tp.trainer.cli.flag_groups import FlagGroup, Positional
from t2tp.trainer.errors import FailedError, UsageError, as_usage_error

# Flags that change what XLA compiles for the same graph.
_COMPILER_FLAGS = ("deterministic", "intra_op_parallelism_threads")
_MAX_MESSAGE = 4000  # Characters of an error.


# Takes the flags and the other arguments; returns the exit code, or None for 0.
Body = Callable[..., int | None]


@dataclass(frozen=True)
class ProgramSpec:
    """The command line of a program and the function that it runs.

    Attributes:
      intro: the beginning of the help.
      body: `module:function` that does the work. The module is imported only if the command line
        is valid. The function takes the flags and, as further arguments, the command line without
        flags. It returns the exit code, None for 0.
      answers: boolean flag -> `module:function` that prints something, called instead of the body.
        With such a flag, no other flags are required.
      positional: the arguments that are not flags.
      imports_tensorflow: whether the body's module imports TensorFlow.
    """

    name: str
    intro: str
    groups: Sequence[FlagGroup]
    body: str
    required: Sequence[str] = ()
    answers: Mapping[str, str] = field(default_factory=dict)
    positional: Sequence[Positional] = ()
    imports_tensorflow: bool = True


def run_program(spec: ProgramSpec, command_line: Sequence[str] | None = None) -> int:
    """Runs a program and returns its exit code.

    `command_line` begins with the program's name; its default is `sys.argv`.
    """
    process = None
    # A process may inherit an ignored SIGCHLD from its parent. The exit codes of its own child
    # processes would then be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command_line = sys.argv if command_line is None else command_line
    try:
        _check_is_utf8(command_line)
        with mirror.session() as session:
            flags, arguments = flag_groups.parse(spec.groups, command_line, spec.positional)
            if flags.help or flags.version:
                text = f"t2tp {metadata.version('t2tp')}"
                if flags.help:
                    text = flag_groups.help_text(spec.intro, spec.groups, spec.positional)
                print(text, flush=True)
                return 0
            body = _body(spec, flags, arguments)
            process = _process(spec, flags)
            session.uploads = process is None or process.process_id == 0
            _prepare_exact_sums(flags)
            quiet = quiet_import() if spec.imports_tensorflow else contextlib.nullcontext()
            with sigint_ends(), quiet:
                run = _function(body)
            import_user_dir_of(flags)
            console.use_plain_lines(process, with_time="log_time" in flags and flags.log_time)
            if "compilation_cache_dir" in flags:
                settings = [flags[name].value for name in _COMPILER_FLAGS if name in flags]
                compilation_cache.use(flags.compilation_cache_dir, *settings)
            code = run(flags, *arguments) or 0
            sys.stdout.flush()  # Raises BrokenPipeError here instead of when Python exits.
        return code
    except BrokenPipeError:
        # The reader has closed stdout, as in `t2tp_plan ... | head -1`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.SIGNALLED + signal.SIGPIPE
    except (UsageError, FailedError, errors.ProcessLostError, StoreError) as error:
        is_bare = isinstance(error, UsageError) and len(command_line) == 1
        advice = f"; {spec.name} --help lists the flags" if is_bare else ""
        message = mirror.with_addresses(f"{error}{advice}")
        if len(message) > _MAX_MESSAGE:  # It may quote from a file of somebody else.
            message = f"{message[: _MAX_MESSAGE // 2]} ... {message[-_MAX_MESSAGE // 2 :]}"
        code = getattr(error, "exit_code", FailedError.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        if error.filename is None:  # Whoever writes another file names it.
            error.filename = os.path.realpath("/dev/stdout")
        # Python would try again, when it exits, to write the rest to a full stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message, code = errors.sentence(error), FailedError.exit_code
    except Exception as error:
        # The second one is TensorFlow's, which may not be imported.
        if type(error).__name__ not in ("MemoryError", "ResourceExhaustedError"):
            raise
        message, code = f"out of memory: {errors.first_line(error)}", FailedError.exit_code
    except KeyboardInterrupt as error:
        if process is None or process.process_id == 0:
            print(f"{spec.name}: {str(error) or 'interrupted'}", file=sys.stderr)
        return getattr(error, "exit_code", errors.SIGNALLED + signal.SIGINT)
    print(f"{_caller(spec, process)}: {message}", file=sys.stderr)
    return code


def _check_is_utf8(command_line: Sequence[str]) -> None:
    """Raises UsageError if an argument is not UTF-8: TensorFlow cannot open such paths."""
    for argument in command_line:
        if os.fsencode(argument).decode("utf-8", "ignore") != argument:
            raise UsageError(
                f"{os.fsencode(argument)!r} is not UTF-8: rename the file or directory"
            )


def _body(spec: ProgramSpec, flags: absl_flags.FlagValues, arguments: Sequence[str]) -> str:
    """Returns the function to run, as `module:function`."""
    for name, answer in spec.answers.items():
        if flags[name].value:
            return answer
    flag_groups.check_given(flags, spec.required)
    flag_groups.check_arguments(arguments, spec.positional)
    return spec.body


def _process(spec: ProgramSpec, flags: absl_flags.FlagValues) -> ProcessSpec | None:
    """Determines which process of a run this is; None if the run has no other processes."""
    if "process_id" not in flags:
        return None
    with as_usage_error(ValueError):
        return process_spec.find_process_spec(
            flags.num_processes, flags.process_id, flags.coordinator
        )


def _prepare_exact_sums(flags: absl_flags.FlagValues) -> None:
    """Sets the environment that `exact_sums` needs and that TensorFlow reads when it is imported.

    The hparams are on the command line, in a file that it names, or in the run's `run.yaml`.
    """
    if "hparams" not in flags or "tensorflow" in sys.modules:
        return
    values = re.findall(r"\bexact_sums\s*=\s*(\w+)", ",".join(flags.hparams))
    files = [flags[name].value or "" for name in ("config", "hparams_set") if name in flags]
    files.append(os.path.join(flags.output_dir or "", run_yaml.FILE))
    for path in filter(lambda path: path.endswith(run_yaml.SUFFIX), files):
        with contextlib.suppress(OSError, ValueError):  # Whoever needs the file reports the error.
            values.append(str(run_yaml.read(path).hparams.get("exact_sums", "0")))
    if values and values[0] != "0":
        os.environ.update(exact_environment.variables())


def _caller(spec: ProgramSpec, process: ProcessSpec | None) -> str:
    """Returns the prefix of errors; `t2tp_launch` parses it to print repeated errors once."""
    if process is None:
        return spec.name
    return f"{spec.name}: process {process.process_id} of {process.num_processes}"


def _function(name: str) -> Body:
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def import_user_dir_of(flags: absl_flags.FlagValues) -> None:
    """Imports the user's own problems, models and hparams sets, which may import TensorFlow.

    Raises:
      UsageError: the import fails; the message has the user's own lines of the traceback.
    """
    if "t2t_usr_dir" not in flags or not flags.t2t_usr_dir:
        return
    # Imported here, because the module imports all problems, which takes 0.2 s.
    from t2tp.problems.user_dir import import_user_dir

    is_loaded = "tensorflow" in sys.modules
    message = ""
    with contextlib.nullcontext() if is_loaded else quiet_stderr():  # It may import Keras.
        try:
            import_user_dir(flags.t2t_usr_dir)
        except Exception as error:  # The user's code may raise any exception.
            message = _in_user_dir(error, flags.t2t_usr_dir)
    if message:
        raise UsageError(message)


def _in_user_dir(error: Exception, directory: str) -> str:
    """Describes an error of importing the user's directory."""
    root = Path(directory).expanduser().resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = traceback.format_list([each for each in frames if root in Path(each.filename).parents])
    if not lines and not isinstance(error, (ImportError, SyntaxError)):
        return str(error)
    lines += traceback.format_exception_only(error)
    return f"--t2t_usr_dir={directory} cannot be imported:\n{''.join(lines).rstrip()}"
