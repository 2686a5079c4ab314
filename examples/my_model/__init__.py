"""A directory for --t2t_usr_dir: its modules register names for the command line."""

from my_model import ngram_lm  # noqa: F401  (it registers itself)
