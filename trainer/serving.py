"""What an exported model does with a request, in TensorFlow's own operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from t2tp.decoding import DecodeOptions
from t2tp.decoding.rows import row_features, row_keys
from t2tp.mesh.program import Feature
from t2tp.problems.vocabulary import END_OF_DOCUMENT, Vocabulary

Tensors = Mapping[str, tf.Tensor]


@dataclass(frozen=True)
class Step:
    """A program's step inside of a graph.

    Attributes:
      run: from its features by name to its outputs by name.
      outputs: what the outputs are.
    """

    run: Callable[[Tensors], Tensors]
    outputs: Mapping[str, tf.TensorSpec]


def in_chunks(
    of_chunk: Callable[[Tensors], Tensors],
    rows: Tensors,
    size: int,
    outputs: Mapping[str, tf.TensorSpec],
) -> dict[str, tf.Tensor]:
    """Applies a function of `size` rows to any number of them.

    Args:
      of_chunk: from tensors [size, ...] by name to `outputs`.
      rows: tensors [rows, ...] by name. The last chunk is filled up with zeros.
      size: of a chunk.
      outputs: [size, ...] by name; those that are scalars are left out.

    Returns:
      tensors [rows, ...] by name.
    """
    count = tf.shape(next(iter(rows.values())))[0]
    chunks = (count + size - 1) // size
    padded = {}
    for name, tensor in rows.items():
        missing = [[0, chunks * size - count]] + [[0, 0]] * (tensor.shape.rank - 1)
        shape = tf.concat([[chunks, size], tf.shape(tensor)[1:]], 0)
        padded[name] = tf.reshape(tf.pad(tensor, missing), shape)
        padded[name].set_shape([None, size, *tensor.shape[1:]])
    wanted = {name: spec for name, spec in outputs.items() if spec.shape.rank}

    def chosen(chunk: Tensors) -> dict[str, tf.Tensor]:
        done = of_chunk(chunk)
        return {name: done[name] for name in wanted}

    done = tf.map_fn(chosen, padded, fn_output_signature=wanted)
    return {
        name: tf.reshape(x, tf.concat([[chunks * size], tf.shape(x)[2:]], 0))[:count]
        for name, x in done.items()
    }


class TokenDecoding:
    """Decodes symbols; see `Decoder`, which gives the same.

    Attributes:
      features: those of the program.
      options: how it decodes.
      reads_inputs: whether the symbols are inputs; else they are how targets begin.
      most: how many symbols of a row it takes.
    """

    def __init__(
        self, options: DecodeOptions, reads_inputs: bool, most: int, max_length: int, seed: int
    ) -> None:
        """Lays out the program.

        Args:
          options: `batch_size` is how many rows are decoded together.
          reads_inputs: whether the model has an encoder.
          most: how many symbols of a row it takes.
          max_length: most symbols of targets, the prompt among them.
          seed: of what is drawn.
        """
        self.options = options
        self.reads_inputs = reads_inputs
        self.most = most
        self._length = min(max_length, most + options.extra_length)
        self._seed = seed
        rows = options.batch_size
        self.features = row_features(rows, self._length, 0 if reads_inputs else most)
        if reads_inputs:
            shape = f"batch:{rows};length:{most}"
            names = ("inputs", "inputs_segmentation", "inputs_position")
            self.features |= {name: Feature(shape, tf.int32) for name in names}

    def __call__(self, step: Step, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes.

        Args:
          step: of the program.
          ids: int32 [rows, symbols], padded at the end with anything.
          lengths: int32 [rows], how many symbols of each row count.

        Returns:
          `ids`, int32 [rows, beam, symbols], then zeros; `lengths`, int32 [rows, beam]; `scores`,
          float32 [rows, beam], -infinity where there are fewer sequences.
        """
        most = self.most
        too_long = f"a row has more than the {most} symbols that this model was exported for"
        checks = [tf.debugging.assert_less_equal(lengths, most, message=too_long)]
        with tf.control_dependencies(checks):
            is_given = tf.range(most) < lengths[:, None]
        width = tf.maximum(0, most - tf.shape(ids)[1])
        ids = tf.where(is_given, tf.pad(ids, [[0, 0], [0, width]])[:, :most], 0)
        ids.set_shape([None, most])
        numbers = tf.range(tf.shape(ids)[0], dtype=tf.int64)
        rows = {"ids": ids, "lengths": lengths, "keys": row_keys(self._seed, numbers)}
        done = in_chunks(
            lambda chunk: step.run(self._fed(chunk)),
            rows,
            self.options.batch_size,
            step.outputs,
        )
        beams = None if self.options.return_beams else 1
        found = {"ids": done["symbols"], "lengths": done["sizes"], "scores": done["scores"]}
        return {name: tensor[:, :beams] for name, tensor in found.items()}

    def _fed(self, chunk: Tensors) -> dict[str, tf.Tensor]:
        """The program's features for a chunk."""
        ids, lengths = chunk["ids"], chunk["lengths"]
        size = self.options.batch_size
        nothing = tf.zeros([size], tf.int32)
        fed = {"room": tf.zeros([size, self._length], tf.int32), "keys": chunk["keys"]}
        if self.reads_inputs:
            places = tf.range(self.most)
            is_given = tf.cast(places < lengths[:, None], tf.int32)
            fed |= {"inputs": ids, "inputs_segmentation": is_given}
            fed |= {"inputs_position": places * is_given, "previous": nothing, "positions": nothing}
            limits = lengths + self.options.extra_length
        else:
            last = tf.gather(ids, tf.maximum(lengths - 1, 0), batch_dims=1)
            fed |= {"prefix": ids, "previous": last * tf.cast(lengths > 0, tf.int32)}
            # A row that is full already (its limit is 0) has no next position.
            fed |= {"positions": tf.minimum(lengths, self._length - 1)}
            room = self._length - lengths
            limits = tf.minimum(nothing + self.options.extra_length, room)
        return fed | {"limits": tf.minimum(limits, self._length)}


class TextDecoding:
    """Decodes text with `TokenDecoding`, the vocabulary inside the graph."""

    def __init__(self, tokens: TokenDecoding, vocabulary: Vocabulary) -> None:
        """Takes the vocabulary of the problem."""
        self._tokens = tokens
        self._vocabulary = vocabulary

    def __call__(self, step: Step, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes.

        Args:
          step: of the program.
          texts: string [rows], UTF-8.

        Returns:
          `outputs`, string [rows], or with `return_beams` [rows, beam]; `scores`, float32 of that
          shape.
        """
        ragged = self._vocabulary.encode_in_graph(texts)
        if self._tokens.reads_inputs:
            end = tf.fill([tf.shape(texts)[0], 1], END_OF_DOCUMENT)
            ragged = tf.concat([ragged, end], axis=1)
        lengths = tf.cast(ragged.row_lengths(), tf.int32)
        found = self._tokens(step, ragged.to_tensor(), lengths)
        shape = tf.shape(found["lengths"])
        ids = tf.reshape(found["ids"], [shape[0] * shape[1], -1])
        # As `Vocabulary.decode`: bytes that are no UTF-8 become U+FFFD.
        written = tf.strings.unicode_transcode(
            self._vocabulary.decode_in_graph(ids), "UTF-8", "UTF-8", errors="replace"
        )
        outputs, scores = tf.reshape(written, shape), found["scores"]
        if not self._tokens.options.return_beams:
            outputs, scores = outputs[:, 0], scores[:, 0]
        return {"outputs": outputs, "scores": scores}
