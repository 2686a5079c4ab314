"""Problems on TFDS's catalog, with mocked data; `sources/test_archives.py` tests archives."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow_datasets as tfds

from t2tp import problems
from t2tp.problems.tfds_problem import chosen_features
from tests.problems.mocked_datasets import example

TEXT = [
    "languagemodel_lm1b32k",
    "languagemodel_wiki40b_en",
    "languagemodel_c4",
    "translate_ende_wmt32k",
    "translate_enfr_wmt32k",
    "summarize_cnn_dailymail32k",
    "sentiment_imdb",
]
IMAGES = [
    "image_mnist",
    "image_mnist_gen",
    "image_cifar10",
    "image_cifar10_gen",
    "image_imagenet32",
    "image_imagenet64_gen",
    "image_imagenet224",
]


def check(problem, data_dir, length=512):
    """Prepares the data, decodes an example, and reads a batch of each split."""
    manifest = problem.prepare(data_dir)
    for split in problem.splits:
        assert manifest.splits[split].examples == 20
        problem.decode_example(data_dir, split, 19)
        batch = problem.stream(data_dir, split, 4, length)[0]
        specs = problem.features
        for name, feature in batch.items():
            whole = np.asarray(feature)
            assert whole.dtype == specs[name].dtype
            assert whole.shape == feature.shape
            assert len(whole.shape) == len(specs[name].dimensions)
        assert batch["targets"][:].max() < problem.vocab_sizes(data_dir)["targets"]
    return problem


@pytest.mark.parametrize("name", TEXT)
def test_texts_of_the_catalog(mocked, tmp_path, name):
    problem = check(problems.find(name, "vocab_size=400"), tmp_path)
    names = [field for field in problem.decode_example(tmp_path, "train", 0) if field != "label"]
    stored = problem.decode_example(tmp_path, "train", 0)
    builder = tfds.builder(problem.dataset)
    originals = {value for n in range(20) for value in example(builder, n).values()}
    for field in names:
        assert stored[field] in originals
    assert problem.check_prepared(tmp_path).origin["dataset"].startswith(problem.dataset)


def test_translation_goes_from_english(mocked, tmp_path):
    for name, other in (("translate_ende_wmt32k", "de"), ("translate_enfr_wmt32k", "fr")):
        problem = problems.find(name)
        sample = problem.samples("train", tmp_path, tmp_path)[3]
        original = example(tfds.builder(problem.dataset), 3)
        assert sample == {"inputs": original["en"], "targets": original[other]}


def test_wikipedia_loses_its_marks():
    text = "\n_START_ARTICLE_\nA\n_START_PARAGRAPH_\nOne._NEWLINE_Two."
    problem = problems.find("languagemodel_wiki40b_en")
    assert problem.sample({"text": text}) == {"text": "A\nOne.\nTwo."}


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_the_catalog(mocked, tmp_path, name):
    problem = check(problems.find(name), tmp_path)
    stored = problem.decode_example(tmp_path, "train", 0)
    assert stored["image"].shape == problem.image_shape
    if name.startswith(("image_mnist", "image_cifar10")):
        originals = [example(tfds.builder(problem.dataset), n)["image"] for n in range(20)]
        assert any(np.array_equal(stored["image"], original) for original in originals)


CASES = [
    ("tfds:imdb_reviews", "", "Text2ClassProblem"),
    ("tfds:wiki40b/en", "targets=text", "LanguageModelProblem"),
    ("tfds:cnn_dailymail", "arrangement=packed", "Text2TextProblem"),
    ("tfds:wmt14_translate/de-en", "inputs=de,targets=en", "Text2TextProblem"),
    ("tfds:openbookqa", "inputs=question/stem,targets=answerKey", "Text2ClassProblem"),
    ("tfds:kmnist", "", "Image2ClassProblem"),
    ("tfds:kmnist", "inputs=-,targets=image", "ImageGenerationProblem"),
    ("tfds:imagenet2012", "height=32,width=32", "Image2ClassProblem"),
]


@pytest.mark.parametrize(("name", "options", "family"), CASES)
def test_any_dataset_by_its_features(mocked, tmp_path, name, options, family):
    options += ",vocab_size=400" if family.endswith(("TextProblem", "ModelProblem")) else ""
    problem = check(problems.find(name, options.lstrip(",")), tmp_path)
    assert family in [base.__name__ for base in type(problem).__mro__]
    assert problem.name == name
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == [
        name.replace(":", "_").replace("/", "_")
    ]


REFUSED = [
    ("tfds:mnst", "", "no dataset 'mnst': did you mean mnist"),
    ("tfds:mqqq", "", r"no dataset 'mqqq': of the \d+ .* the nearest are [\w, ]{,80}$"),
    ("tfds:glue/sst3", "", "no dataset 'glue/sst3': did you mean sst2"),
    ("tfds:glue/sst2:9.9.9", "", "cannot open the dataset .* 9.9.9"),
    ("tfds:wiki40b/en", "", r"which features of .* text \(Text\)"),
    ("tfds:titanic", "", r"which features of .* say it with the options inputs and targets"),
    ("tfds:openbookqa", "targets=question", r"no feature 'question': .* question/stem"),
    ("tfds:mnist", "inputs=label,targets=image", "no problem goes from label to image"),
    ("tfds:imagenet2012", "", "have no fixed size"),
    ("tfds:mnist", "vocab_size=300", "options of tfds:mnist: vocab_size=300"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_what_cannot_be_a_problem_is_said(name, options, message):
    with pytest.raises(ValueError, match=message):
        problems.find(name, options)


def test_numbers_among_the_options_have_a_range():
    for name in [*TEXT, "tfds:mnist", "mixture:summarize_cnn_dailymail32k=1"]:
        options = problems.find(name).options
        for each in options.values():
            if options.expected(each).startswith(("int", "float")):
                assert str(options.limits(each)), f"{name}: {each}"


def test_features_without_names_are_said():
    """The dataset's examples are not dictionaries."""

    info = SimpleNamespace(full_name="pairs/1.0.0", features=(1, 2), supervised_keys=None)
    with pytest.raises(ValueError, match="which features of pairs/1.0.0.* have no names"):
        chosen_features(info, "", "")


@pytest.mark.parametrize("name", [*TEXT, *IMAGES])
def test_problems_can_be_sent_to_workers(name):
    assert pickle.loads(pickle.dumps(problems.find(name))).name == name


def test_without_a_network_it_gives_up_soon_and_says_what_stays(tmp_path, monkeypatch):
    import requests

    retries = []

    def no_network(self, request, **settings):
        retries.append(self.max_retries.total)
        raise requests.exceptions.ConnectionError("no route to host")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", no_network)
    with pytest.raises(OSError, match=f"mnist: .*no route to host.* kept in {tmp_path}"):
        problems.find("tfds:mnist").download(tmp_path / "made", tmp_path)
    assert retries and max(retries) == 4
