"""Decoding: greedy, sampling, beam search."""
