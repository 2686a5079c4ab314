"""The directory of a run: settings, lock, checkpoints and evaluations.

`run_files` reads and writes `run.yaml`, the settings for resuming and repeating a run. `run_lock`
allows one training at a time. `RunCheckpoints` restores the variables to start from: from the
run's latest checkpoint, from the checkpoint that a path names (`find_checkpoint`), or from another
run (`warm_start`). `RunSaver` saves in the background when a `SavePolicy` decides.

`evaluation_record` keeps the metrics of evaluations, and `averaging` averages several checkpoints.
"""
