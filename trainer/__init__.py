"""Training, evaluation and decoding of runs.

An `Estimator` owns a model function, its variables on a mesh, and the checkpoints of a run. An
`Experiment` adds the problem: it runs the schedules, such as `train_and_evaluate`. What is trained
is a `RunSpec` (model, problem, hparams, data, steps); how it is carried out is a `RunConfig`
(directory, precision, checkpoints, reports).

`inputs` feeds batches, `hooks` run around the steps, `run_dir` reads and writes the files of a run,
`inference` decodes and exports, and `cli` has the command-line programs.
"""
