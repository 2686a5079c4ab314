"""A directory for --t2t_usr_dir: its modules register what the command line can name."""

from my_problems import roman_numerals  # noqa: F401  (it registers itself)
