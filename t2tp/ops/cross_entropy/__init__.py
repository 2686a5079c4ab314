"""Softmax cross-entropy of logits, or of activations that are projected to logits."""
