"""Finds a problem by name."""

import re

from t2tp import registry
from t2tp.problems import tfds_problem
from t2tp.problems.mixture import find_mixture
from t2tp.problems.mixture_name import PREFIX
from t2tp.problems.problem import Problem
from t2tp.problems.text_files import FileProblem
from t2tp.problems.text_to_text import PairProblem

# Valid names of data sets, which are parts of directory names.
_DATASET = re.compile(r"[\w-]+")


def find(name: str, options: str = "") -> Problem:
    """Returns the problem of this name.

    Args:
      name: a registered problem, "tfds:" and a dataset (`tfds_problem.py`), or "mixture:" and
        proportions (`mixture_name.py`). A registered name may have the suffix `_rev` (swaps
        inputs and targets), `_copy` (the targets are the inputs) or `_rev_copy` (both). For a
        problem on user files, the name may end in ":" and the name of a data set, as in
        "translate_tsv:news".
      options: the problem's options, as in "vocab_size=4096,arrangement=packed". In a mixture, an
        option for only one problem has the problem's name as a prefix: "b.arrangement=packed".

    Raises:
      UnknownNameError: there is no such problem.
      ValueError: the options cannot be parsed, or the problem has no inputs to swap.
    """
    if name.startswith(PREFIX):
        return find_mixture(name, options, find)
    if name.startswith(tfds_problem.PREFIX):
        return tfds_problem.find_tfds(name, options)
    named, colon, dataset = name.partition(":")
    plain, is_reversed, is_copy = _without_suffixes(named)
    problem = registry.problem(plain)(options) if options else registry.problem(plain)()
    if is_reversed or is_copy:
        if not isinstance(problem, PairProblem):
            raise ValueError(
                f"{name}: {plain} does not go from tokens to tokens, so it has no _rev and no _copy"
            )
        problem.is_reversed, problem.is_copy = is_reversed, is_copy
    if colon:
        if not isinstance(problem, FileProblem):
            raise ValueError(
                f"{name}: {named} is not made from files of yours, so there is one of it, without "
                f"a name of a data set: {named}"
            )
        if not _DATASET.fullmatch(dataset):
            raise ValueError(
                f"{name}: {dataset!r} cannot name a data set; letters, digits, _ and - can, as in "
                f"{named}:news"
            )
        problem.dataset = dataset
    return problem


def _without_suffixes(name: str) -> tuple[str, bool, bool]:
    """Returns the name without suffixes, and whether it had `_rev` and `_copy`."""
    has = {}
    for suffix in ("_copy", "_rev"):
        has[suffix] = name.endswith(suffix) and name not in registry.list_problems()
        name = name.removesuffix(suffix) if has[suffix] else name
    return name, has["_rev"], has["_copy"]
