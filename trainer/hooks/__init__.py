"""Hooks around the training steps.

`hook` defines the interface and the view of a training; `default_hooks` lists the hooks that
every training has. Each other module is one of them: reports and TensorBoard summaries, the JSON
log, trackers, the progress bar, the heartbeat, profiles, histograms, and the check for non-finite
steps with its diagnosis.
"""
