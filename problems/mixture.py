"""Mixtures of problems, with given proportions or with proportions from the sizes of the data.

The name `mixture:a=0.7,b=0.3` gives the proportions. In `mixture:a,b`, the problems' numbers of
training rows determine them.

Problems that train a vocabulary need a common vocabulary. So their mixture has its own directory,
with new data of each problem in a subdirectory. Other mixtures use the existing data of their
problems.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2tp.hparam import HParams
from t2tp.hparam_types import split_at_commas
from t2tp.object_store.mirror import pulled
from t2tp.problems.codec import Codec
from t2tp.problems.data.batch_stream import Batch, Stream
from t2tp.problems.data.manifest import Manifest
from t2tp.problems.data.mixture_stream import ConcatenatedSource, MixtureStream, Stage
from t2tp.problems.data.sample import Sample, Samples, StoredExample
from t2tp.problems.generated_images import GeneratedImages
from t2tp.problems.mixture_name import find_parts, proportional_parts, read_name
from t2tp.problems.prepare.open_samples import OpenSamples
from t2tp.problems.prepare.split_samples import ShuffledSamples
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.shared_vocabulary import agree, make_shared_vocabulary, sharing
from t2tp.problems.vocab.vocabulary import Vocabulary

# Longer names of directories are truncated.
_LONGEST_DIRECTORY = 120

# Max number of classes that an error names.
_NAMED_CLASSES = 5

# Options of the mixture itself.
_OPTIONS = ("temperature", "max_rows")


class Mixture(Problem):
    """Problems whose batches have the same features, mixed row by row.

    An evaluation includes all examples of all problems. To evaluate on one problem, pass its name
    as `--problem`.

    Options, if the name has no proportions; see `mixture_name.proportional_parts`:
        temperature: temperature of the proportions.
        max_rows: cap on a problem's rows when proportions are computed; 0: none.
    """

    def __init__(
        self, name: str, parts: Sequence[Problem], schedule: Sequence[Stage], options: str = ""
    ):
        """Mixes problems; see `find_mixture`.

        Raises:
          ValueError: their features differ, they cannot have a common vocabulary, or an option is
            invalid.
        """
        self._name = name
        super().__init__(options)
        if self.given_options and schedule:
            raise ValueError(
                f"options of {name}: {' and '.join(self.given_options)} cannot change the "
                "proportions in the name: omit these options, or the proportions"
            )
        self.parts = list(parts)
        self._schedule = list(schedule)
        self._sharing = sharing(parts)
        if self._sharing:
            agree(name, self._sharing)
            for part in parts:
                # The mixture warns instead: only its own `t2tp_datagen` command can regenerate the
                # shared data.
                part.warns_of_changes = False
        self.given_options |= self._dotted(lambda part: part.given_options)
        self.splits = tuple(self._common(lambda part: part.splits))
        self.metric_names = tuple(self._common(lambda part: part.metric_names))
        self.decode_metric_names = tuple(self._common(lambda part: part.decode_metric_names))
        self.eos_id, self.features = self.parts[0].eos_id, self.parts[0].features
        for part in self.parts[1:]:
            if part.features != self.features:
                raise ValueError(
                    f"{self.parts[0].name} and {part.name} cannot be mixed, as their batches do "
                    "not have the same features"
                )

    def _common(self, names: Callable[[Problem], Sequence[str]]) -> list[str]:
        first, *others = self.parts
        return [each for each in names(first) if all(each in names(other) for other in others)]

    def _dotted(self, values: Callable[[Problem], Mapping[str, Any]]) -> dict[str, Any]:
        return {f"{p.name}.{name}": value for p in self.parts for name, value in values(p).items()}

    def default_options(self) -> HParams:
        """Declares the mixture's own options."""
        options = super().default_options()
        temperature_help = "temperature of the proportions, if the name has none"
        options.add("temperature", 1.0, help=temperature_help, above=0.0)
        max_rows_help = "cap on a problem's rows when proportions are computed; 0: no cap"
        options.add("max_rows", 0, help=max_rows_help, min=0)
        return options

    @property
    def name(self) -> str:
        """The name as the user typed it."""
        return self._name

    def directory(self, data_dir: AnyPath) -> Path:
        """Returns the mixture's directory if it has its own data, or else the first problem's."""
        if not self._sharing:
            return self.parts[0].directory(data_dir)
        names = dict.fromkeys(part.directory(data_dir).name for part in self.parts)
        name = f"mixture_{'+'.join(names)}"
        if len(name) > _LONGEST_DIRECTORY:
            name = f"{name[:_LONGEST_DIRECTORY]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return pulled(Path(data_dir) / name)

    def parts_dir(self, data_dir: AnyPath) -> AnyPath:
        """Returns the `data_dir` of the problems."""
        return self.directory(data_dir) if self._sharing else data_dir

    def generation_options(self) -> dict[str, Any]:
        """Returns all problems' options, with names such as "b.documents"."""
        return self._dotted(lambda part: part.generation_options())

    def default_generation_options(self) -> dict[str, Any]:
        """Returns the defaults of all problems' options."""
        return self._dotted(lambda part: part.default_generation_options())

    def with_own_data(self) -> Sequence[Problem]:
        """Returns the mixture if it has its own data, or else its problems."""
        return [self] if self._sharing else self.parts

    def data_dependencies(self) -> dict[str, Any]:
        """Returns the problems' dependencies and `_shares_rule`."""
        return {
            "shares": self._shares_rule(),
            **self._dotted(lambda part: part.data_dependencies()),
        }

    def parts_in(self, directory: Path) -> Mapping[Path, Problem]:
        """Returns the problems that share a vocabulary, by the directory of their data."""
        return {part.directory(directory): part for part in self._sharing}

    def download(self, directory: Path, tmp_dir: Path) -> None:
        """Downloads the sources of all problems."""
        for part_dir, part in self.parts_in(directory).items():
            part_dir.mkdir(exist_ok=True)
            part.beam = self.beam  # TFDS may generate the part's dataset with Beam.
            part.download(part_dir, tmp_dir)

    def make_vocabulary(self, directory: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Makes one vocabulary from all problems' texts, with a copy for each problem."""
        assert isinstance(samples, OpenSamples)  # as `prepare` gives it
        parts = [
            (part, part_dir, samples.inside(part, part_dir)(part.splits[0]))
            for part in self._sharing
            for part_dir in [part.directory(directory)]
        ]
        return make_shared_vocabulary(parts, self._shares, directory)

    def provenance(self, directory: Path, tmp_dir: Path) -> dict[str, Any]:
        """Returns each problem's provenance and `_shares_rule`."""
        parts = self.parts_in(directory).items()
        of_parts = {part.name: Manifest.read(part_dir).origin for part_dir, part in parts}
        return {"shares": self._shares_rule(), **of_parts}

    def _shares(self, rows: Sequence[int]) -> list[float]:
        """Returns the proportions in which the problems' texts train the vocabulary.

        They are averaged over the stages of the schedule, with equal weights.
        """
        parts = np.array([stage.parts for stage in self._stages(rows)], float)
        return (parts / parts.sum(1, keepdims=True)).mean(0).round(6).tolist()

    def _stages(self, rows: Sequence[int]) -> list[Stage]:
        """Returns the schedule, given the number of training rows of each problem."""
        temperature, max_rows = self.options.temperature, self.options.max_rows
        return self._schedule or [Stage(0, proportional_parts(rows, temperature, max_rows))]

    def _shares_rule(self) -> Any:
        """Returns the proportions in the name, or the options that determine them."""
        return self._shares([]) if self._schedule else self.options.values()

    def changed_sources(self, directory: Path) -> str:
        """Describes changes in the problems' sources and in `_shares_rule`."""
        if not self._sharing:
            return ""
        parts = self.parts_in(directory).items()
        changed = [(part.name, part.changed_sources(part_dir)) for part_dir, part in parts]
        sources = [f"{name}, {change}" for name, change in changed if change]
        manifest = Manifest.read(directory)
        is_taken = any(manifest.options.get(f"{p.name}.vocabulary_from") for p in self._sharing)
        before = manifest.origin["shares"]
        if before != self._shares_rule() and not is_taken:
            shares = "the proportions in which the problems' texts train the vocabulary"
            sources.append(f"{shares}, which were {before}")
        return "; ".join(sources)

    def digest(self, data_dir: AnyPath) -> str:
        """Returns a digest of the problems' data."""
        self.check_prepared(data_dir)
        digests = [part.digest(self.parts_dir(data_dir)) for part in self.parts]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def check_prepared(self, data_dir: AnyPath) -> Manifest:
        """Checks the data of all problems, and that their vocabularies and classes are the same.

        Raises:
          FileNotFoundError, ValueError: see `Problem.check_prepared`; or the problems cannot be
            mixed.
        """
        own_manifest = super().check_prepared(data_dir) if self._sharing else None
        parts_dir = self.parts_dir(data_dir)
        manifests = [part.check_prepared(parts_dir) for part in self.parts]
        sizes = [part.vocab_sizes(parts_dir) for part in self.parts]
        for part, manifest, size in zip(self.parts, manifests, sizes, strict=True):
            if manifest.vocabulary != manifests[0].vocabulary or size != sizes[0]:
                raise ValueError(
                    f"{self.parts[0].name} and {part.name} cannot be mixed, as their tokens are "
                    f"not the same: one has {sizes[0]['targets']}, the other {size['targets']}"
                )
            if part.class_names != self.parts[0].class_names:
                raise ValueError(
                    f"{self.parts[0].name} and {part.name} cannot be mixed, as their classes are "
                    f"not the same: {_first(self.parts[0].class_names)}, and "
                    f"{_first(part.class_names)}; give both sets of data the same classes"
                )
        return own_manifest or manifests[0]

    def check_contents(self, data_dir: AnyPath, num_workers: int = 1) -> Manifest:
        """Checks every byte of all problems' data; see `Problem.check_contents`."""
        for part in self.parts:
            part.check_contents(self.parts_dir(data_dir), num_workers)
        return self.check_prepared(data_dir)

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of ids of each feature, the same for all problems."""
        self.check_prepared(data_dir)
        return self.parts[0].vocab_sizes(self.parts_dir(data_dir))

    def examples(self, data_dir: AnyPath, split: str, length: int) -> ConcatenatedSource:
        """Returns the examples of all problems, concatenated."""
        parts_dir = self.parts_dir(data_dir)
        return ConcatenatedSource([part.examples(parts_dir, split, length) for part in self.parts])

    def train_examples(self, data_dir: AnyPath, length: int) -> ConcatenatedSource:
        """Returns the training rows of all problems."""
        parts_dir = self.parts_dir(data_dir)
        return ConcatenatedSource([part.train_examples(parts_dir, length) for part in self.parts])

    def train_stream(self, data_dir: AnyPath, batch_size: int, length: int, seed: int) -> Stream:
        """Returns the mixed batches."""
        source = self.train_examples(data_dir, length)
        stages = self._stages([len(each) for each in source.sources])
        return MixtureStream(source, stages, batch_size, seed)

    def counts(self, batch: Batch) -> dict[str, float]:
        """Adds up the problems' counts. Each problem counts its own rows."""
        assert isinstance(batch.source, ConcatenatedSource)  # as `examples` made it
        sums: dict[str, float] = {}
        for part, rows in zip(self.parts, batch.source.parts(batch), strict=True):
            for name, count in part.counts(rows).items():
                sums[name] = sums.get(name, 0.0) + count
        return sums

    @property
    def generated_images(self) -> GeneratedImages | None:
        """The format of generated images, the same for all problems."""
        return self.parts[0].generated_images

    def codec(self, data_dir: AnyPath) -> Codec | None:
        """Returns the codec that all problems have in common."""
        self.check_prepared(data_dir)
        return self.parts[0].codec(self.parts_dir(data_dir))

    def vocabulary(self, data_dir: AnyPath) -> Vocabulary | None:
        """Returns the vocabulary that all problems have in common."""
        return self.parts[0].vocabulary(self.parts_dir(data_dir))

    def change_hparams(self, hparams: HParams, data_dir: AnyPath | None = None) -> None:
        """Changes the hparams as the first problem does."""
        self.parts[0].change_hparams(hparams, data_dir and self.parts_dir(data_dir))

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Raises NotImplementedError: only the problems have samples."""
        raise NotImplementedError(f"{self.name} has no samples: its problems have")

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the columns of the first problem."""
        return self.parts[0].columns(directory)

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns the encoder of the first problem."""
        return self.parts[0].encoder(directory)

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns the decoder of the first problem."""
        return self.parts[0].decoder(directory)

    def decode_example(self, data_dir: AnyPath, split: str, number: int) -> dict[str, Any]:
        """Returns a sample; `number` counts through all problems. See `Problem.decode_example`."""
        self.check_split(split)
        parts_dir, before = self.parts_dir(data_dir), 0
        for part in self.parts:
            count = Manifest.read(part.directory(parts_dir)).splits[split].examples
            if before <= number < before + count:
                return part.decode_example(parts_dir, split, number - before)
            before += count
        raise IndexError(f"there is no example {number}: {split} of {self.name} has {before}")

    def datagen_command(self, data_dir: AnyPath) -> str:
        """Returns the command that makes the mixture's data, or a command for each problem."""
        if self._sharing:
            return super().datagen_command(data_dir)
        return "\n  ".join(part.datagen_command(data_dir) for part in self.parts)


def _first(class_names: Sequence[str]) -> str:
    more = f", ... ({len(class_names)} in all)" if len(class_names) > _NAMED_CLASSES else ""
    return f"{', '.join(class_names[:_NAMED_CLASSES])}{more}"


def find_mixture(name: str, options: str, find: Callable[[str, str], Problem]) -> Mixture:
    """Returns the mixture of a name and options.

    See `mixture_name` for the name, and for the options of the problems.

    Raises:
      ValueError: the name is invalid, or the problems cannot be mixed.
    """
    names, schedule = read_name(name)
    pieces = split_at_commas(options) if options.strip() else []
    own = [each for each in pieces if each.partition("=")[0].strip() in _OPTIONS]
    others = [each for each in pieces if each not in own]
    return Mixture(name, find_parts(name, names, others, find), schedule, ",".join(own))
