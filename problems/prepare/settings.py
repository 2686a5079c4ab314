"""Settings of the generation of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from t2tp.hparam_limits import Limits

# By default, one in this many samples may be bad.
_GOOD_FOR_A_BAD_ONE = 1000


@dataclass(frozen=True)
class BeamSettings:
    """Settings of Apache Beam, for generating shards and for TFDS datasets that are Beam pipelines.

    Attributes:
      runner: name of a runner, such as DirectRunner.
      options: flags of the runner, such as `--direct_num_workers=4`.
    """

    runner: str
    options: Sequence[str] = ()

    def check(self) -> None:
        """Raises ModuleNotFoundError if Apache Beam is not installed; checks the options.

        Raises:
          ValueError: the options ask for processes of this host.
        """
        if find_spec("apache_beam") is None:
            raise ModuleNotFoundError("--beam_runner needs Apache Beam: pip install -e '.[beam]'")
        if self.runner == "DirectRunner" and "multi_processing" in " ".join(self.options):
            raise ValueError(
                "beam_pipeline_options: multi_processing starts processes of this host: leave out"
                " --beam_runner, and give their number by --num_workers"
            )


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of the generation of data. The examples do not depend on them.

    The settings are described in `Problem.prepare`. `num_shards` is also the max number of shards
    of the other splits. Fewer than `num_workers` processes run if each would get fewer than 500
    samples.
    """

    num_shards: int | None = None
    num_workers: int | None = 1
    max_bad_samples: int | None = None
    beam: BeamSettings | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if a value is too small."""
        for name, least in {"num_shards": 1, "num_workers": 1, "max_bad_samples": 0}.items():
            Limits(min=least).check(name, getattr(self, name))

    def bad_limit(self, sample_counts: Mapping[str, int]) -> int:
        """Returns the max number of bad samples, given the number of samples of each split."""
        if self.max_bad_samples is not None:
            return self.max_bad_samples
        return sum(sample_counts.values()) // _GOOD_FOR_A_BAD_ONE
