"""The hyperparameter search of `t2tp_tune`, on Optuna. Each point is trained in its own process."""
