"""What `t2tp_exporter` does once its flags are read."""

from __future__ import annotations

from pathlib import Path

from absl import flags as absl_flags

from t2tp import registry
from t2tp.decoding import DecodeOptions
from t2tp.problems.user_dir import import_user_dir
from t2tp.trainer import console, plan, run_files
from t2tp.trainer.command import building
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.export import RunExporter


def run(flags: absl_flags.FlagValues) -> None:
    """Exports what the flags name, and prints where it is.

    Args:
      flags: of the command line.

    Raises:
      UsageError: it cannot be done; nothing was written.
    """
    if flags.t2t_usr_dir:
        with as_usage_error(ValueError, OSError):
            import_user_dir(flags.t2t_usr_dir)
    if flags.registry_help:
        print(registry.help_text())
        return
    console.use_plain_lines()
    with as_usage_error(ValueError, LookupError, OSError, ModuleNotFoundError):
        if flags.output_dir:
            run_files.check_is_run(flags.output_dir)
        run_files.check_writable(flags.export_dir or flags.output_dir, "the folder of the export,")
        made = plan.make(flags)
        made.check_same_data(flags.data_dir)
        exporter = RunExporter(
            made.settings["model"],
            made.problem,
            flags.data_dir,
            made.hparams,
            made.config,
            DecodeOptions.parse(flags.decode_hparams, batch_size=1),
            flags.max_input_length,
        )
    with as_usage_error(OSError, ModuleNotFoundError), building(made.settings["model"]):
        print(exporter.export(flags.export_dir or Path(flags.output_dir, "export")))
