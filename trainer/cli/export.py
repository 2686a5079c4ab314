"""`t2tp_exporter`: exports a run as a SavedModel or for LiteRT."""

from pathlib import Path

from absl import flags as absl_flags

from t2tp.checkpoint.files import is_pattern
from t2tp.decoding import DecodeOptions
from t2tp.trainer.cli.spec_from_flags import spec_of_run
from t2tp.trainer.cli.train import building
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.inference.exporter import RunExporter
from t2tp.trainer.inference.generation_config import default_options
from t2tp.trainer.run_dir import run_files


def run(flags: absl_flags.FlagValues) -> None:
    """Exports the run that the flags name and prints the path."""
    with as_usage_error(ValueError, LookupError, OSError, ModuleNotFoundError):
        spec = spec_of_run(flags)
        what = "--export_dir" if flags.export_dir else "--export_dir is missing, and output_dir"
        run_files.check_writable(flags.export_dir or flags.output_dir, what)
        target = flags.export_dir or str(Path(flags.output_dir, "export"))
        if is_pattern(Path(target).absolute()):
            raise UsageError(
                f"TensorFlow cannot load a SavedModel from a path with one of [ ] * ? \\: {target};"
                " name another directory with --export_dir"
            )
        spec.check_same_data()
        is_litert = flags.format == "litert"
        defaults = default_options(spec, can_sample=not is_litert)
        options = DecodeOptions.parse(flags.decode_hparams, batch_size=1, **defaults)
        dtype = "float32" if is_litert else None  # LiteRT has no kernels for bfloat16.
        exporter = RunExporter(spec, options, flags.max_input_length, dtype)
    with as_usage_error(OSError, ModuleNotFoundError), building(spec.model):
        if is_litert:
            print(exporter.export_litert(target, flags.int8))
        else:
            print(exporter.export(target))
