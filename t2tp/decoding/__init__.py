"""Decoding: greedy, drawing, beam search; see docs/decoding.md."""

from t2tp.decoding.decode import decode
from t2tp.decoding.decoder import Decoder, Hypothesis, Request
from t2tp.decoding.options import DecodeOptions

__all__ = ["DecodeOptions", "Decoder", "Hypothesis", "Request", "decode"]
