"""Batches for training and evaluation.

`Inputs` describes batches: their features in named dimensions, and a stream that returns the batch
of any step by its number. With such a stream a resumed run continues at once, with the same data.
`problem_inputs` makes inputs from a problem. `datasets` makes inputs from a `tf.data.Dataset`,
which reaches a step only by skipping the earlier batches. `batch_size` converts the hparam
`batch_size` to sequences.
"""
