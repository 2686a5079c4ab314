"""The TensorFlow functions that serve the requests of an exported model."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from t2tp.decoding import DecodeOptions
from t2tp.decoding.prompt_batch import prompt_arrays, row_features, row_keys, sequence_arrays
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.trainer.inference.saved_model import Step, Tensors


def in_chunks(
    of_chunk: Callable[[Tensors], Tensors],
    rows: Tensors,
    size: int,
    outputs: Mapping[str, tf.TensorSpec],
) -> dict[str, tf.Tensor]:
    """Applies a function for `size` rows to any number of rows, chunk by chunk.

    Args:
      of_chunk: maps tensors [size, ...] by name to `outputs`.
      rows: tensors [rows, ...] by name. The last chunk is padded with zeros.
      size: number of rows of a chunk.
      outputs: specs of the results, [size, ...] by name; scalars are dropped.

    Returns:
      Tensors [rows, ...] by name.
    """
    count = tf.shape(next(iter(rows.values())))[0]
    chunks = (count + size - 1) // size
    padded = {}
    for name, tensor in rows.items():
        missing = [[0, chunks * size - count]] + [[0, 0]] * (tensor.shape.rank - 1)
        shape = tf.concat([[chunks, size], tf.shape(tensor)[1:]], 0)
        padded[name] = tf.reshape(tf.pad(tensor, missing), shape)
        # The dynamic reshape loses the static sizes.
        padded[name].set_shape([None, size, *tensor.shape[1:]])
    batched = {name: spec for name, spec in outputs.items() if spec.shape.rank}

    def chosen(chunk: Tensors) -> dict[str, tf.Tensor]:
        results = of_chunk(chunk)
        return {name: results[name] for name in batched}

    results = tf.map_fn(chosen, padded, fn_output_signature=batched)
    return {
        name: tf.reshape(x, tf.concat([[chunks * size], tf.shape(x)[2:]], 0))[:count]
        for name, x in results.items()
    }


class TokenDecoding:
    """Decodes tokens inside the graph, with the same results as `Decoder`.

    Attributes:
      features: the program's features.
      reads_inputs: whether the tokens are inputs; else they are prompts.
      max_tokens: max tokens of a row of inputs or prompt.
    """

    def __init__(
        self,
        options: DecodeOptions,
        reads_inputs: bool,
        max_tokens: int,
        max_length: int,
        seed: int,
    ) -> None:
        """Determines the features of the program.

        Args:
          options: decoding options; `batch_size` is the number of rows to decode together.
          reads_inputs: whether the model has an encoder.
          max_tokens: max tokens of a row of inputs or prompt.
          max_length: max tokens of targets, prompt included.
          seed: seed of sampling.
        """
        self.options = options
        self.reads_inputs = reads_inputs
        self.max_tokens = max_tokens
        self._length = min(max_length, max_tokens + options.extra_length)
        self._seed = seed
        rows = options.batch_size
        prefix_length, inputs_length = (0, max_tokens) if reads_inputs else (max_tokens, 0)
        self.features = row_features(rows, self._length, prefix_length, inputs_length)

    def __call__(self, step: Step, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes rows of tokens.

        Args:
          step: the program's step.
          ids: int32 [rows, tokens], padded at the end with any values.
          lengths: int32 [rows], number of tokens without padding.

        Returns:
          `ids`, int32 [rows, beam, tokens], zero-padded; `lengths`, int32 [rows, beam]; `scores`,
          float32 [rows, beam], -infinity where fewer sequences were found.
        """
        max_tokens = self.max_tokens
        too_long = f"a row has more than the {max_tokens} tokens that this model was exported for"
        checks = [tf.debugging.assert_less_equal(lengths, max_tokens, message=too_long)]
        with tf.control_dependencies(checks):
            is_given = tf.range(max_tokens) < lengths[:, None]
        width = tf.maximum(0, max_tokens - tf.shape(ids)[1])
        ids = tf.where(is_given, tf.pad(ids, [[0, 0], [0, width]])[:, :max_tokens], 0)
        ids.set_shape([None, max_tokens])
        numbers = tf.range(tf.shape(ids)[0], dtype=tf.int64)
        rows = {"ids": ids, "lengths": lengths, "keys": row_keys(self._seed, numbers)}
        done = in_chunks(
            lambda chunk: step.run(self.fed(chunk)), rows, self.options.batch_size, step.outputs
        )
        beams = None if self.options.return_beams else 1
        outputs = {"ids": done["symbols"], "lengths": done["sizes"], "scores": done["scores"]}
        return {name: tensor[:, :beams] for name, tensor in outputs.items()}

    def fed(self, chunk: Tensors) -> dict[str, tf.Tensor]:
        """Returns the program's features for a chunk of rows.

        The chunk has `ids`, int32 [batch_size, max_tokens]; `lengths`, int32 [batch_size]; and
        `keys`, int64 [batch_size], which seed the sampling.
        """
        ids, sizes, keys = chunk["ids"], chunk["lengths"], chunk["keys"]
        extra = self.options.extra_length
        if not self.reads_inputs:
            limits = tf.minimum(extra, self._length - sizes)
            return prompt_arrays(ids, sizes, limits, keys, self._length)
        limits = tf.minimum(sizes + extra, self._length)
        prompts = prompt_arrays(ids[:, :0], tf.zeros_like(sizes), limits, keys, self._length)
        return prompts | sequence_arrays("inputs", ids, sizes)


def decode_texts(
    tokens: TokenDecoding, vocabulary: Vocabulary, step: Step, texts: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Decodes texts, string [rows], UTF-8; the vocabulary's end token is appended to inputs.

    Returns:
      `outputs`, string [rows], or with `return_beams` [rows, beam]; `scores`, float32 of the same
      shape.
    """
    ragged = vocabulary.encode_in_graph(texts)
    if tokens.reads_inputs:
        end = tf.fill([tf.shape(texts)[0], 1], vocabulary.end_of_document)
        ragged = tf.concat([ragged, end], axis=1)
    lengths = tf.cast(ragged.row_lengths(), tf.int32)
    decoded = tokens(step, ragged.to_tensor(), lengths)
    shape = tf.shape(decoded["lengths"])
    ids = tf.reshape(decoded["ids"], [shape[0] * shape[1], -1])
    # As in `Vocabulary.decode`, bytes that are not UTF-8 become U+FFFD.
    written = tf.strings.unicode_transcode(
        vocabulary.decode_in_graph(ids), "UTF-8", "UTF-8", errors="replace"
    )
    outputs, scores = tf.reshape(written, shape), decoded["scores"]
    if not tokens.options.return_beams:
        outputs, scores = outputs[:, 0], scores[:, 0]
    return {"outputs": outputs, "scores": scores}
