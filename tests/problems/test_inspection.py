"""The report of --inspect, for each family."""

import re

import numpy as np
import pytest

from t2tp import problems, registry
from t2tp.problems.inspection.report import ascii_image, inspect
from t2tp.problems.text_to_class import Text2ClassProblem


@registry.register_problem
class EvenWords(Text2ClassProblem):
    """Whether the number of words is even."""

    vocabulary_kind = "byte"
    class_names = ("odd", "even")

    def samples(self, split, directory, tmp_dir):
        return [{"inputs": " ".join(["w"] * n), "label": n % 2 == 0} for n in range(1, 16)]


@pytest.fixture
def shown(tmp_path):
    """Returns a function: problem and options -> report and problem, with its data in tmp_path."""

    def show(name, options=""):
        problem = problems.find(name, options)
        problem.prepare(tmp_path / "data")
        return inspect(problem, tmp_path / "data"), problem

    return show


def table(text, heading):
    """Returns the rows of numbers under a heading."""
    lines = text[text.index(heading) :].splitlines()[1:]
    rows = [re.findall(r"[\d.,]+", line) for line in lines[: [*lines, ""].index("")]]
    return [[float(cell.replace(",", "")) for cell in row] for row in rows]


def measured_padding(batches, features):
    """Returns the percentage of padding in rows that have examples."""
    empty = places = 0
    for batch in batches:
        segments = [np.asarray(batch[f"{name}_segmentation"]) for name in features]
        real = segments[0].any(1)
        empty += sum(int((each[real] == 0).sum()) for each in segments)
        places += sum(each[real].size for each in segments)
    return 100 * empty / places


def test_pairs(shown, tmp_path):
    lines = [f"{'long ' * (n % 9)}{n}\tlang {n}\n" for n in range(300)]
    (tmp_path / "a.tsv").write_text("".join(lines))
    options = f"files={tmp_path}/a.tsv,vocab_size=290"
    text, problem = shown("translate_tsv", options)
    assert "inputs: 'long long" in text and "lengths of inputs in train" in text
    assert re.search(r"tokens of targets in train: [\d,]+ in all, \d+ different ones of 290", text)
    assert "'lang'" in text and "(end)" in text
    for length, padded, packed, bucketed, left_out in table(text, "padding in rows of a length"):
        assert left_out == 0
        for arrangement, said in (("padded", padded), ("packed", packed), ("bucketed", bucketed)):
            problem = problems.find("translate_tsv", f"arrangement={arrangement}")
            stream = problem.stream(tmp_path / "data", "train", 8, int(length))
            epoch = getattr(stream, "batches_per_epoch", None) or -(-stream.examples_per_epoch // 8)
            # An epoch of a stream may end within a batch, which then has rows of the next epoch.
            measured = measured_padding([stream[n] for n in range(epoch)], ["inputs", "targets"])
            assert said == pytest.approx(measured, abs=2 if arrangement == "packed" else 0.5)


def test_running_text(shown, tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(400)))
    options = f"files={tmp_path}/a.txt,documents=lines,vocab_size=280"
    text, problem = shown("languagemodel_textfiles", options)
    assert "text: 'line " in text
    rows = table(text, "padding in windows of a length")
    tokens = problem.check_prepared(tmp_path / "data").splits["train"].tokens
    for length, windows, padding in rows:
        assert windows == -(-tokens // length)
        assert padding == pytest.approx(100 * (1 - tokens / windows / length), abs=0.001)


def test_classes(shown):
    text, _ = shown("even_words")
    assert "tokens of targets in train: 15 in all, 2 different ones of 2" in text
    assert "8   53.3%  class odd" in text
    # 15 texts of n words have 2 n - 1 letters and EOS: in total 240 tokens.
    assert table(text, "padding in rows of a length")[0] == [32, 50.0, 0]


def test_images(shown):
    text, _ = shown("image_digits")
    assert "label: " in text and "padding" not in text and "class 9" in text
    drawing = text[text.index("image:") :].splitlines()[1:9]
    assert {len(line) for line in drawing} == {4 + 2 * 8}
    assert "counts" not in shown("image_digits_gen")[0]


def test_a_image_is_drawn_from_light_to_dark():
    image = np.array([[[0], [8]], [[16], [0]]], np.uint8)
    assert ascii_image(image).splitlines() == ["      ==", "    @@  "]
