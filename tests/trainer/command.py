"""Programs as people type them, in this process."""

from t2tp.trainer.cli import programs


def flags_of(flags: dict[str, object]) -> list[str]:
    """Returns the words of flags by name; a flag of None is omitted."""
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


def call(program: str, *arguments: object, **flags: object) -> int:
    """Runs a program and returns its exit code."""
    return getattr(programs, program)([program, *map(str, arguments), *flags_of(flags)])
