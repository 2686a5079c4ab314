"""Classification of texts that are longer than a row."""

import numpy as np

from t2tp import registry
from t2tp.problems.text_to_class import Text2ClassProblem


@registry.register_problem
class LongerThanEight(Text2ClassProblem):
    """Texts of 1 to 20 bytes, thus of 2 to 21 tokens."""

    vocabulary_kind = "byte"
    class_names = ("short", "long")

    def samples(self, split, directory, tmp_dir):
        return [{"inputs": "abcdefghijklmnopqrst"[:n], "label": n > 8} for n in range(1, 21)]


def test_an_evaluation_has_every_example_and_training_those_that_fit(tmp_path, caplog):
    problem = LongerThanEight()
    problem.prepare(tmp_path)
    assert len(problem.train_examples(tmp_path, 12)) == 11
    assert "9 of 20 examples are left out, as they are longer than length 12" in caplog.text
    for split in problem.splits:  # train too, if it is evaluated
        source = problem.examples(tmp_path, split, 12)
        assert f"{split} of longer_than_eight: 9 of 20 examples are truncated" in caplog.text
        rows = np.arange(20)
        inputs, segments, targets, weights = (
            source.read(name, rows, (slice(None),))
            for name in ("inputs", "inputs_segmentation", "targets", "weights")
        )
        assert weights.sum() == 20 and targets.sum() == 12
        assert sorted((segments > 0).sum(1)) == [*range(2, 12)] + [12] * 10
        vocabulary = problem.vocabulary(tmp_path)
        texts = {vocabulary.decode(row[row > 1]) for row in inputs}
        assert texts == {"abcdefghijklmnopqrst"[:n] for n in range(1, 13)}
