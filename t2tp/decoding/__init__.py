"""Decoding: from prompts to the tokens that a model continues them with.

A program decodes a whole batch at once. Its features are a `PromptBatch`: the rows' prompts, the
max number of tokens of each, and its random key. The model computes the prompts in one forward pass
that fills a cache (the prefill), then continues token by token (decode steps) in one while loop of
the graph, until all rows are done: `greedy_or_sample` follows one sequence per row, `beam_search`
several. A sample depends on the row's key, the position and the token, not on the batch or the
mesh. The vocabulary may be split: each processor then proposes candidates from its slice, and only
these are gathered.

`Decoder` decodes any number of rows of any length; see docs/decoding.md.
"""

from t2tp.decoding.decode import decode
from t2tp.decoding.decoder import Decoder, Hypothesis, Request
from t2tp.decoding.options import DecodeOptions

__all__ = ["DecodeOptions", "Decoder", "Hypothesis", "Request", "decode"]
