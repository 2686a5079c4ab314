"""The directory of a run: settings, lock, checkpoints and evaluations.

`run_files` reads and writes `run.yaml`, the settings for resuming and repeating a run. `run_lock`
allows one training at a time. `RunCheckpoints` restores the values to start from: the latest
checkpoint, a named one (`find_checkpoint`), or a checkpoint of another run (`warm_start`).
`RunSaver` saves in the background when a policy of `save_policy` is due.

`evaluation_record` keeps the metrics of evaluations, `checkpoint_follower` waits for the
checkpoints of a run that another process trains, and `averaging` averages several checkpoints.
"""
