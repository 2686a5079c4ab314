"""The hyperparameter search of `t2tp_tune`, on Optuna. A process trains each point of a range."""
