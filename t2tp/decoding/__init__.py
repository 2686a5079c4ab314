"""Decoding: from prompts to the tokens that a model writes after them.

A program decodes a whole batch at once. Its features are a `PromptBatch`: the rows' prompts, how
far each may go, and the key of its random numbers. The model computes the prompts in one forward
pass that fills a cache (the prefill), then goes on token by token (decode steps) inside one while
loop of the graph, until all rows are done: `greedy_or_sample` follows one sequence for each row,
`beam_search` several. What is sampled depends on the row's key, the position and the token, not on
the batch or the mesh. The vocabulary may be split: each processor then proposes candidates from
its slice, and only these are gathered.

`Decoder` is the whole of it for texts or tokens of any number and length; see docs/decoding.md.
"""

from t2tp.decoding.decode import decode
from t2tp.decoding.decoder import Decoder, Hypothesis, Request
from t2tp.decoding.options import DecodeOptions

__all__ = ["DecodeOptions", "Decoder", "Hypothesis", "Request", "decode"]
