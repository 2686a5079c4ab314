import numpy as np
import pytest
from sklearn.datasets import load_digits

from t2tp import problems
from t2tp.problems.images import Image2ClassProblem, shrink_to_cover
from tests.problems.decoded import all_decoded


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    for name in ("image_digits", "image_digits_gen"):
        problems.find(name).prepare(directory)
    return directory


@pytest.mark.slow
def test_every_digit_comes_back_once(data_dir):
    digits, labels = load_digits(return_X_y=True)
    wanted = sorted(
        (image.astype(int).tolist(), int(n)) for image, n in zip(digits, labels, strict=True)
    )
    found, generated = (
        all_decoded(problems.find(name), data_dir) for name in ("image_digits", "image_digits_gen")
    )
    assert sorted((each["image"].ravel().tolist(), each["label"]) for each in found) == wanted
    shades = sorted(each["image"].ravel().tolist() for each in generated)
    assert shades == sorted(np.minimum(digits, 15).astype(int).tolist())


def test_batches_for_classes(data_dir):
    problem = problems.find("image_digits")
    assert problem.vocab_sizes(data_dir) == {"targets": 10}
    stream = problem.stream(data_dir, "validation", batch_size=100, length=1)
    assert len(stream) == 3
    inputs, targets, weights = (np.asarray(stream[2][n]) for n in ("inputs", "targets", "weights"))
    assert inputs.shape == (100, 8, 8, 1)
    assert inputs[:50].max() == 1.0 and not inputs[50:].any()
    assert targets[:50].any() and not targets[50:].any()
    assert weights.tolist() == [1.0] * 50 + [0.0] * 50


def test_batches_for_generation(data_dir):
    problem = problems.find("image_digits_gen")
    batch = problem.stream(data_dir, "train", batch_size=32, length=1)[5]
    whole = np.asarray(batch["targets"])
    assert whole.shape == (32, 8, 8, 1) and whole.dtype == np.int32
    assert set(np.unique(whole)) <= set(range(16)) and whole.max() == 15
    assert np.array_equal(batch["targets"][8:16, 2:4, 4:8], whole[8:16, 2:4, 4:8])


class Photographs(Image2ClassProblem):
    image_shape = (16, 16, 3)
    class_names = ("dark", "light")
    stored_as_jpeg = True
    splits = ("train",)

    def samples(self, split, directory, tmp_dir):
        shades = np.linspace(0, 255, 16)[:, None, None] * np.ones((16, 16, 3))
        return [{"image": (shades * k).astype(np.uint8), "label": k} for k in (0, 1)]


def test_images_are_stored_compressed_if_asked_for(tmp_path):
    problem = Photographs()
    problem.prepare(tmp_path)
    batch = problem.stream(tmp_path, "train", 2, 1)[0]
    light = np.asarray(batch["targets"]).tolist().index(1)
    image = np.asarray(batch["inputs"])[light]
    assert np.abs(image - np.linspace(0, 1, 16)[:, None, None]).max() < 0.05
    part = batch["inputs"][light : light + 1, 3:5, 2:4, 0:2][0]
    np.testing.assert_array_equal(part, image[3:5, 2:4, 0:2])


REFUSED = [
    ({"image": np.zeros((8, 8, 3)), "label": 0}, r"shape \(8, 8, 3\), not \(16, 16, 3\)"),
    ({"image": np.full((16, 16, 3), 256), "label": 0}, "values from 256 to 256, not below 256"),
    ({"image": np.zeros((16, 16, 3)), "label": 2}, "label 2, and there are 2 classes"),
]


@pytest.mark.parametrize(("sample", "message"), REFUSED)
def test_samples_that_do_not_fit_are_refused(tmp_path, monkeypatch, sample, message):
    monkeypatch.setattr(Photographs, "samples", lambda *places: [sample])
    with pytest.raises(ValueError, match=message):
        Photographs().prepare(tmp_path)


def test_a_photograph_is_scaled_to_cover_and_cut():
    wide = np.zeros((40, 80, 3), np.uint8)
    wide[:, 40:] = 200
    small = shrink_to_cover(wide, 10, 10)
    assert small.shape == (10, 10, 3)
    assert small[:, 0].max() == 0 and small[:, 9].min() == 200
