"""The search of `t2tp_tune`, on Optuna: points of a ranged set, each trained by a process."""
