"""Estimator, Experiment, and the command-line programs."""
