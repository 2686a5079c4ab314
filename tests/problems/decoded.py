"""Decodes the stored examples of a problem."""

from pathlib import Path
from typing import Any

from t2tp.problems.problem import Problem


def decoded(problem: Problem, data_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns split -> its samples, decoded from the stored examples."""
    decode, samples = problem.decoder(problem.directory(data_dir)), {}
    for split, sizes in problem.check_prepared(data_dir).splits.items():
        columns = problem.stored(data_dir, split).items()
        numbers = range(sizes.examples)
        examples = [{name: each.example(n) for name, each in columns} for n in numbers]
        samples[split] = [decode(example) for example in examples]
    return samples


def all_decoded(problem: Problem, data_dir: Path) -> list[dict[str, Any]]:
    """Returns the samples of all splits."""
    return [sample for samples in decoded(problem, data_dir).values() for sample in samples]
