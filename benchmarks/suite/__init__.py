"""Runs the cases of a suite in turns, and stores, compares and draws the results."""
