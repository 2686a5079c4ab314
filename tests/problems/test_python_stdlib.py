import pytest

import t2tp.problems  # noqa: F401  (registers the problems)
from t2tp.problems.python_stdlib import source_files, split_of
from tests.problems.conftest import AWKWARD, SMALL, TinyStdlib


def test_documents_are_the_utf8_files_of_each_split_in_the_order_of_their_paths(problem, sources):
    documents = AWKWARD | SMALL
    names = [name for name in source_files(sources) if "/" in name]
    assert names == sorted([*documents, "awkward/empty.py", "awkward/latin_1.py"])
    for split in problem.splits:
        texts = [sample["text"].encode() for sample in problem.samples(split, sources, sources)]
        own = [documents[name] for name in names if name in documents and split_of(name) == split]
        assert [text for text in texts if text in own] == own  # unchanged, and without the others
        assert b"" not in texts


def test_the_split_of_a_file_never_changes():
    assert split_of("small/module_0.py") == "train"
    assert split_of("small/module_3.py") == "validation"
    assert split_of("small/module_37.py") == "test"
    splits = [split_of(f"package/module_{i}.py") for i in range(10_000)]
    for split, percent in {"train": 94, "validation": 3, "test": 3}.items():
        assert splits.count(split) == pytest.approx(100 * percent, abs=100)


CASES = [
    ([], "no .py files in "),
    (["notes.txt"], "no .py files in "),
    (["os.py"], "tiny_stdlib has no samples for its split validation"),
]


@pytest.mark.parametrize(("files", "message"), CASES)
def test_too_few_files_are_said_and_leave_nothing(tmp_path, files, message):
    sources, data_dir = tmp_path / "sources", tmp_path / "data"
    sources.mkdir()
    for name in files:
        (sources / name).write_text("x = 1\n")
    with pytest.raises(ValueError, match=message):
        TinyStdlib(sources).prepare(data_dir)
    assert [path.name for path in data_dir.iterdir()] == [".tiny_stdlib.lock"]
