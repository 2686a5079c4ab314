"""Files of an interrupted preparation are reused, unless what they depend on has changed."""

import importlib
import itertools
import sys
from pathlib import Path

import pytest

from t2tp.atomic_file import is_unfinished
from t2tp.problems.prepare import prepare
from t2tp.problems.text_to_text import Text2TextProblem
from tests.killed import killed_before_renaming
from tests.problems.decoded import all_decoded, decoded
from tests.problems.prepare.few_digits import FewDigits
from tests.problems.prepare.own_pairs import (
    GeneratedPairs,
    OwnPairs,
    SubwordPairs,
    files_of,
    prepare_until,
)

KINDS = [OwnPairs, GeneratedPairs, SubwordPairs]


def changed(samples, how):
    number = len(samples) // 3
    return {
        "nothing": samples,
        "one more": [*samples, {"inputs": "another", "targets": "text"}],
        "one less": samples[:number] + samples[number + 1 :],
        "many less": samples[: len(samples) // 2],
    }[how]


CHANGES = ["nothing", "one more", "one less", "many less"]


CHANGED = [*itertools.product([OwnPairs, GeneratedPairs], CHANGES), (SubwordPairs, "nothing")]


@pytest.mark.parametrize(("kind", "how"), CHANGED)
def test_another_number_of_samples_makes_the_data_again(tmp_path, caplog, kind, how):
    prepare_until(kind(), tmp_path / "resumed", 150, num_shards=3)
    new = kind(changed(kind().train, how))
    caplog.clear()
    new.prepare(tmp_path / "resumed", num_shards=3)
    new.prepare(tmp_path / "undisturbed", num_shards=3)
    assert files_of(new, tmp_path / "resumed") == files_of(new, tmp_path / "undisturbed")
    assert ("had another number of samples" in caplog.text) == (how != "nothing")


def test_each_sample_comes_once_and_in_one_split(tmp_path):
    for kind in KINDS:
        prepare_until(kind(), tmp_path, 150, num_shards=3)
        made = kind().prepare(tmp_path, num_shards=3)
        found = [tuple(sample.values()) for sample in all_decoded(kind(), tmp_path)]
        expected = [
            tuple(sample.values())
            for split in made.splits
            for sample in kind().samples(split, tmp_path, tmp_path)
        ]
        assert sorted(found) == sorted(expected)


def test_other_code_of_the_problem_makes_the_data_again(tmp_path, monkeypatch):
    """Only the code of the encoder changes; the samples stay the same."""
    code = tmp_path / "code"
    code.mkdir()
    text = (
        "from tests.problems.prepare.own_pairs import OwnPairs\n"
        "class CodedPairs(OwnPairs):\n"
        "    '''Marks what is read.'''\n"
        "    def encoder(self, directory):\n"
        "        encode = super().encoder(directory)\n"
        "        return lambda s: encode({**s, 'inputs': 'MARK ' + s['inputs']})\n"
    )

    monkeypatch.syspath_prepend(code)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def coded(mark):
        sys.modules.pop("coded_pairs", None)
        (code / "coded_pairs.py").write_text(text.replace("MARK", mark * len(mark)))
        return importlib.import_module("coded_pairs").CodedPairs()

    prepare_until(coded("old"), tmp_path / "data", 150, num_shards=3)
    problem = coded("newer")
    problem.prepare(tmp_path / "data", num_shards=3)
    samples = decoded(problem, tmp_path / "data")["train"]
    assert samples and all(sample["inputs"].startswith("newer") for sample in samples)


def test_sources_that_change_while_they_are_read_are_said(tmp_path, monkeypatch):
    plans = itertools.count()
    monkeypatch.setattr(OwnPairs, "data_dependencies", lambda self: {"seen": next(plans)})
    with pytest.raises(ValueError, match="own_pairs changed while"):
        OwnPairs().prepare(tmp_path)
    assert not OwnPairs().directory(tmp_path).exists()


def test_the_code_of_a_problem_is_not_all_of_python_s(monkeypatch):
    read = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or read_bytes(path))
    prepare.code_digest(Text2TextProblem, with_neighbours=True)
    assert {"text_to_text.py", "text.py", "problem.py"} <= {*read} and len(read) < 10


@pytest.mark.parametrize("name", ["manifest.json", "train-00001-of-00002.checks", ".plan"])
def test_killed_while_a_file_gets_its_name_it_leaves_no_other_file(tmp_path, name):
    killed_before_renaming(lambda: FewDigits().prepare(tmp_path / "killed", num_shards=2), name)
    left = [path for path in (tmp_path / "killed").rglob("*") if is_unfinished(path)]
    assert len(left) == 1, left
    for place in ("killed", "undisturbed"):
        FewDigits().prepare(tmp_path / place, num_shards=2)
    killed, undisturbed = (files_of(FewDigits(), tmp_path / n) for n in ("killed", "undisturbed"))
    assert killed == undisturbed
    assert not [path for path in (tmp_path / "killed").rglob("*") if is_unfinished(path)]
