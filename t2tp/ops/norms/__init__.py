"""Normalization layers' operations: layer, RMS, batch and group norm."""
