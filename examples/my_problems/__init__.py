"""A directory for --t2t_usr_dir: its modules register names for the command line."""

from my_problems import roman_numerals  # noqa: F401  (it registers itself)
