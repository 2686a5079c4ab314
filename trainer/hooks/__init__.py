"""Hooks around the training steps.

`hook` defines the interface of hooks, and `Training`, which shows them the training's progress.
`default_hooks` lists the hooks of every training. The other modules contain these hooks and their
helpers: reports and TensorBoard summaries, the JSON log, the progress bar, the heartbeat,
profiles, histograms, and the checks for non-finite steps and for replicas that differ.
"""
