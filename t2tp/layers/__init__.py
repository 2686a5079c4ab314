"""Blocks of models, in named dimensions."""
