"""A folder for --t2t_usr_dir: what its modules register can be named on the command line."""

from my_model import ngram_lm  # noqa: F401  (it registers itself)
