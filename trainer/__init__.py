"""Training, evaluation and decoding of runs.

An `Estimator` owns a model function, its variables on a mesh, and the checkpoints of a run. An
`Experiment` adds the problem and runs the schedules, such as `train_and_evaluate`. A `RunSpec`
defines what to train: model, problem, hparams, data and steps. A `RunConfig` has the settings of
the run itself: directory, checkpoints, reports and processes.

`inputs` feeds batches, `hooks` run around the steps, `run_dir` reads and writes the files of a run,
`inference` decodes and exports, and `cli` has the command-line programs.
"""
