"""Decoding: a model reads prompts and generates the tokens that continue them.

A program decodes a whole batch at once. Its features are a `PromptBatch`: each row's prompt, max
number of tokens and random key. The prefill computes the prompts in one forward pass and fills a
cache. Decode steps then add one token at a time, in a while loop of the graph, until all rows are
done. `greedy_or_sample` follows one sequence per row, `beam_search` several. If the vocabulary is
split, each processor proposes candidates from its slice, and only the candidates are gathered.

`Decoder` decodes any number of rows of any length; see docs/decoding.md.
"""

from t2tp.decoding.decoder import Decoder, Hypothesis, Request, decode
from t2tp.decoding.options import DecodeOptions

__all__ = ["DecodeOptions", "Decoder", "Hypothesis", "Request", "decode"]
