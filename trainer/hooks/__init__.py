"""Hooks around the training steps.

`hook` defines the interface and the view of a training; `default_hooks` lists the hooks that
every training has. The other modules contain these hooks and their helpers: reports and TensorBoard
summaries, the JSON log, trackers, the progress bar, the heartbeat, profiles, histograms, and the
checks for non-finite steps and for replicas that differ.
"""
