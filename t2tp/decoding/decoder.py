"""Decodes lists of requests: batches rows of similar length, and splits the results by row."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from absl import logging

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.decoding.beam_search import search
from t2tp.decoding.greedy_and_sampling import greedy_or_sample
from t2tp.decoding.options import BEAM, DecodeOptions
from t2tp.decoding.prompt_batch import (
    ROW_FEATURES,
    PromptBatch,
    first_token,
    pad,
    prompt_arrays,
    row_features,
    row_keys,
    sequence_arrays,
)
from t2tp.mesh.layout import Layout
from t2tp.mesh.layout_conflicts import VECTOR
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.processes.cluster import Cluster
from t2tp.program.program import Feature, Program
from t2tp.program.variables import Variables


def decode(
    model: AutoregressiveModel,
    mesh: Mesh,
    features: Mapping[str, mtf.Tensor],
    options: DecodeOptions,
) -> dict[str, mtf.Tensor]:
    """Builds the decoding of a batch: a prefill and a loop of decode steps.

    The features are the model's features, and those that `row_features` declares. For the result
    see `greedy_or_sample` and `search`.
    """
    rows = PromptBatch.from_features(features)
    prompt_features = {
        name: tensor for name, tensor in features.items() if name not in ROW_FEATURES
    }
    state = model.prefill(mesh, prompt_features, rows.length)
    find = search if options.method == BEAM else greedy_or_sample
    return find(model, mesh, rows, state, options)


# Tracing a program takes about as long as computing this many tokens with a small model.
TRACING_TOKENS = 8192

Lengths = tuple[int, ...]


class ProgramShapes:
    """Pads batches to few different lengths, because each combination of lengths needs a program.

    A new program is traced only if tracing costs less than the padding that it saves. Costs are
    counted in tokens, not measured, so all processes make the same choice.
    """

    def __init__(self, rows: int, tracing_tokens: int = TRACING_TOKENS) -> None:
        """Begins without traced programs, for batches of `rows` rows.

        Tracing a program costs `tracing_tokens` tokens. With 0 there is no padding, but a program
        for each batch's lengths.
        """
        self._rows, self._tracing_tokens = rows, tracing_tokens
        self._traced: set[Lengths] = set()

    def batches(self, rows: Sequence[Lengths], count: int) -> Iterator[tuple[list[int], Lengths]]:
        """Yields batches of up to `count` rows: the rows' indices, and the program's lengths."""
        order = sorted(range(len(rows)), key=lambda number: rows[number], reverse=True)
        batches = [order[begin : begin + count] for begin in range(0, len(order), count)]
        longest = [
            tuple(map(max, zip(*(rows[number] for number in numbers), strict=True)))
            for numbers in batches
        ]
        padded = self._padded(longest)
        yield from zip(batches, (padded[each] for each in longest), strict=True)

    def _padded(self, batches: Sequence[Lengths]) -> dict[Lengths, Lengths]:
        """Chooses the program's lengths for each batch's lengths, at the lowest total cost.

        Batches that share a new program are adjacent when sorted by their lengths.
        """
        counts = Counter(batches)
        lengths = sorted(counts)
        # best[n] is the best choice of programs for the n shortest lengths. It has the total cost,
        # and, of the last group of lengths that share a program, the begin and the program.
        best: list[tuple[int, int, Lengths]] = [(0, 0, ())]
        for end in range(1, len(lengths) + 1):
            longest, tokens, choices = lengths[end - 1], 0, []
            for begin in reversed(range(end)):
                longest = tuple(map(max, longest, lengths[begin]))
                tokens += self._rows * counts[lengths[begin]]
                for program in {longest, *self._traced}:
                    if all(map(operator.ge, program, longest)):
                        tracing = 0 if program in self._traced else self._tracing_tokens
                        cost = best[begin][0] + tracing + tokens * sum(program)
                        choices.append((cost, begin, program))
            best.append(min(choices))
        padded: dict[Lengths, Lengths] = {}
        end = len(lengths)
        while end:
            _, begin, program = best[end]
            padded |= dict.fromkeys(lengths[begin:end], program)
            end = begin
        self._traced.update(padded.values())
        return padded


# Runs the program that the features' shapes select: (features, arrays of a batch) -> global output
# arrays.
Predict = Callable[[Mapping[str, Feature], Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Request:
    """A row to decode.

    Attributes:
      prefix: the prompt, which is the beginning of the targets.
      inputs: tokens that an encoder reads; None for a model without inputs.
      limit: max number of tokens to generate, EOS included. Default: the number of input tokens
        plus `DecodeOptions.extra_length`.
      first_token: the input token at position 0; None: the model's `bos_token_id`.
    """

    prefix: Sequence[int] = ()
    inputs: Sequence[int] | None = None
    limit: int | None = None
    first_token: int | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence.

    Attributes:
      tokens: the tokens after the prefix, without EOS.
      log_prob: log-probability (natural logarithm) of the tokens and EOS, given the prefix.
      score: the number that ranks sequences: `log_prob`, in beam search divided by the length
        penalty.
      has_ended: whether the sequence ends with EOS; otherwise it was truncated at its limit.
    """

    tokens: list[int]
    log_prob: float
    score: float
    has_ended: bool


@dataclass(eq=False)
class Decoder:
    """Decodes rows with a model.

    ```python
    decoder = Decoder.from_model(model, DecodeOptions(beam_size=4), mesh_shape="data:2", ...)
    [[best], ...] = decoder([Request(prefix=[5, 7]), ...])
    ```

    Rows are decoded in batches of similar length; see `ProgramShapes`. A row's result depends
    neither on its batch nor on the mesh. Samples depend on the seed and the row's index in the list
    of requests.

    Attributes:
      predict: runs `decode` for the model with `options`, as `Estimator.predict` does.
      layout: the mesh's layout, which rounds the batch size up; see `padded_rows`.
      options: how to decode.
      max_length: the model's max number of input tokens, which is also its max number of target
        tokens.
      seed: seed of the samples.
    """

    predict: Predict
    layout: Layout
    options: DecodeOptions
    _: KW_ONLY
    max_length: int
    seed: int = 0

    def __post_init__(self) -> None:
        self._batch_size = padded_rows(self.options.batch_size, self.layout)
        self._shapes = ProgramShapes(self._batch_size * self.options.width)

    @classmethod
    def from_model(
        cls,
        model: AutoregressiveModel,
        options: DecodeOptions | None = None,
        *,
        mesh_shape: str = "",
        layout: str | Layout = "",
        variables: Variables | None = None,
        cluster: Cluster | None = None,
        seed: int = 0,
        xla: bool | None = None,
    ) -> Decoder:
        """Builds the programs from a model.

        Args:
          model: an autoregressive model.
          options: how to decode; by default beam search of width 4.
          mesh_shape: mesh axes and their sizes, such as `data:2;model:4`.
          layout: rules such as `batch:data;heads:model`, or a `Layout` with its own mesh shape.
          variables: the variables of another program of the same model on the same mesh; the
            decoder uses them instead of new variables.
          cluster: see `Program`.
          seed: seed of the samples and of new variables.
          xla: see `Program`.
        """
        chosen = options or DecodeOptions()
        on_mesh = Layout.from_arguments(mesh_shape, layout)
        programs: dict[tuple, Program] = {}

        def predict(
            features: Mapping[str, Feature], batch: Mapping[str, np.ndarray]
        ) -> Mapping[str, np.ndarray]:
            key = tuple((name, f.shape.to_string) for name, f in features.items())
            if key not in programs:
                loaded = list(programs.values())
                programs[key] = Program(
                    lambda mesh, given: decode(model, mesh, given, chosen),
                    features,
                    layout=on_mesh,
                    cluster=loaded[0].cluster if loaded else cluster,
                    variables=loaded[0].variables if loaded else variables,
                    seed=seed,
                    xla=xla,
                )
            return programs[key](batch)

        return cls(predict, on_mesh, chosen, seed=seed, max_length=model.max_length)

    def __call__(self, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """Decodes rows; see `iterate`.

        Returns:
          a list for each row: its best sequence, or, with `return_beams`, up to `beam_size`
          sequences, the best first.
        """
        hypotheses = dict(self.iterate(requests))
        return [hypotheses[number] for number in range(len(requests))]

    def iterate(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decodes rows; yields each with its index as soon as its batch is done.

        Raises:
          ValueError: a row is too long for the model, only some rows have inputs or a first token,
            or the model's logits are NaN.
        """
        sizes = [self._sizes(number, request) for number, request in enumerate(requests)]
        if len({request.inputs is None for request in requests}) > 1:
            raise ValueError("some rows have inputs and some have none: decode them separately")
        lengths = [each for _, each in sizes]
        for numbers, padded in self._shapes.batches(lengths, self._batch_size):
            limits = [sizes[number][0] for number in numbers]
            features, batch = self._batch(numbers, requests, limits, padded)
            outputs = self.predict(features, batch)
            arrays = {name: np.asarray(outputs[name]) for name in _OUTPUTS}
            if np.isnan(arrays["log_probs"]).any():
                raise ValueError("the model's logits are NaN: no token can be chosen")
            for row, number in enumerate(numbers):
                yield number, self._hypotheses({n: array[row] for n, array in arrays.items()})

    def check(self, request: Request) -> None:
        """Raises ValueError if the model has too few positions for a row's inputs or prompt."""
        check_length("input", request.inputs or (), self.max_length)
        check_length("prompt", request.prefix, self.max_length)

    def _sizes(self, number: int, request: Request) -> tuple[int, Lengths]:
        """Returns a row's max number of new tokens, and its rounded lengths.

        These are the number of input tokens, the number of prefix tokens, and the number of
        positions of the prefix and the new tokens.
        """
        inputs, prefix = len(request.inputs or ()), len(request.prefix)
        limit = request.limit
        if limit is None:
            limit = inputs + self.options.extra_length
        if request.inputs is not None:
            inputs = max(1, inputs)
        try:
            self.check(request)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
        room = self.max_length - prefix
        if request.limit is not None and limit > room:
            logging.warning(
                "row %d: at most %d tokens are generated, not %d: the model's context_length is %d",
                number,
                room,
                limit,
                self.max_length,
            )
        limit = min(limit, room)
        length = self._rounded(max(1, prefix + limit))
        return limit, (self._rounded(inputs), min(length, self._rounded(prefix)), length)

    def _batch(
        self,
        numbers: Sequence[int],
        requests: Sequence[Request],
        limits: Sequence[int],
        lengths: Lengths,
    ) -> tuple[dict[str, Feature], dict[str, np.ndarray]]:
        """Returns features and arrays of some requests, padded to `lengths`."""
        rows = self._batch_size
        inputs_length, prefix_length, length = lengths
        reads_inputs = requests[numbers[0]].inputs is not None
        if not (prefix_length or reads_inputs):
            prefix_length = 1  # Dummy column; only its batch size is used.
        prefix, prefix_sizes = pad([requests[n].prefix for n in numbers], rows, prefix_length)
        keys, padded_limits = np.zeros([rows], np.int64), np.zeros([rows], np.int32)
        keys[: len(numbers)] = row_keys(self.seed, np.array(numbers, np.int64))
        padded_limits[: len(numbers)] = limits
        batch = prompt_arrays(prefix, prefix_sizes, padded_limits, keys, length)
        if reads_inputs:
            inputs = [requests[number].inputs or () for number in numbers]
            batch |= sequence_arrays("inputs", *pad(inputs, rows, inputs_length))
        features = row_features(rows, length, prefix_length, inputs_length)
        return first_token(features, batch, [requests[number].first_token for number in numbers])

    def _rounded(self, size: int) -> int:
        """Rounds a length up, so that few programs are traced; 0 stays 0."""
        rounded = round_up(size) if size else 0
        return min(rounded, self.max_length)

    def _hypotheses(self, row: Mapping[str, np.ndarray]) -> list[Hypothesis]:
        """Converts one row's outputs to hypotheses."""
        count = len(row["scores"]) if self.options.return_beams else 1
        return [
            Hypothesis(
                row["symbols"][index, : row["sizes"][index]].tolist(),
                float(row["log_probs"][index]),
                float(row["scores"][index]),
                bool(row["ended"][index]),
            )
            for index in range(count)
            if np.isfinite(row["scores"][index])
        ]


_OUTPUTS = ("symbols", "sizes", "log_probs", "scores", "ended")


def check_length(name: str, tokens: Sequence[int], max_length: int) -> None:
    """Raises ValueError if a model has too few positions for a sequence."""
    if len(tokens) > max_length:
        raise ValueError(
            f"the {name} has {len(tokens)} tokens, and the model's context_length is {max_length}"
        )


def padded_rows(batch_size: int, layout: Layout) -> int:
    """Rounds a batch size up, so that every processor has the same number of rows.

    With `exact_sums`, that number is a multiple of a CPU's vector size.
    """
    multiple = layout.batch_slices * (VECTOR if layout.exact_sums else 1)
    return -(-batch_size // multiple) * multiple


def round_up(size: int, parts: int = 2) -> int:
    """Rounds a size up to one of few lengths: at least 8, with `parts` lengths per doubling.

    With 2 parts the lengths are 8, 12, 16, 24, 32, 48, 64, ... Above 8, padding is below 50%.
    """
    power = 8
    while power < size:
        power *= 2
    step = max(4, power // (2 * parts))
    return max(8, -(-size // step) * step)
