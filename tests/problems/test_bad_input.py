"""Failures end with a one-sentence error and leave no invalid data."""

import pytest

from t2tp import problems
from t2tp.trainer.cli import programs
from tests.files import flip

GOOD = b"".join(b"line %d\tZeile %d\n" % (n, n) for n in range(100))


@pytest.fixture
def failure(capfd):
    """Runs t2tp_datagen; returns its error, without the log lines before it."""

    def of(*flags):
        code = programs.t2tp_datagen(["t2tp_datagen", *flags])
        stderr = capfd.readouterr().err
        assert code == 1, stderr
        assert "Traceback" not in stderr
        _, sentence = stderr.split("t2tp_datagen: ")
        return sentence.strip()

    return of


REFUSED = [
    ("languagemodel_textfiles", b"", "files={file}: there is no text in {file}"),
    ("languagemodel_textfiles", b"\n" * 90, "cannot train a vocabulary of 300 pieces: the te"),
    ("languagemodel_textfiles", GOOD + b"\xe9\n", "{file}, line 101: not UTF-8 (unexpected"),
    *(
        ("translate_tsv", GOOD + line, f"{{file}}, line 101: {sentence}")
        for line, sentence in (
            (b"one column\n", "1 columns, and there must be 2, with a tab between them"),
            (b"a\tb\tc\n", "3 columns, and there must be 2, with a tab between them"),
            (b"a\t\xff\n", "not UTF-8 (invalid start byte, byte 0xff)"),
        )
    ),
]


@pytest.mark.parametrize(("problem", "contents", "sentence"), REFUSED)
def test_files_that_cannot_be_used(failure, tmp_path, problem, contents, sentence):
    file = tmp_path / "input.txt"
    file.write_bytes(contents)
    documents = ",documents=lines" if problem.startswith("languagemodel") else ""
    options = f"--problem_options=files={file},vocab_size=300{documents}"
    said = failure(f"--problem={problem}", f"--data_dir={tmp_path / 'data'}", options)
    assert said.startswith(sentence.format(file=file))
    assert not [*(tmp_path / "data").glob("[!.]*")]


@pytest.fixture
def made(tmp_path):
    """Makes data of pairs, to be damaged."""
    (tmp_path / "a.tsv").write_bytes(GOOD)
    options = f"files={tmp_path}/a.tsv,vocab_size=290"
    problem = problems.find("translate_tsv", options)
    problem.prepare(tmp_path / "data")
    return problem.directory(tmp_path / "data")


def shorten(path):
    path.write_bytes(path.read_bytes()[:-2])


DAMAGED = {
    "a missing shard": ("train-00000-of-00001.inputs", "unlink", " is missing"),
    "a truncated shard": ("train-00000-of-00001.targets", shorten, " bytes were written"),
    "a changed vocabulary": ("vocabulary.model", flip, "is not the file that the rest"),
    "a missing manifest": ("manifest.json", "unlink", "has no manifest.json"),
    "a truncated manifest": ("manifest.json", shorten, "manifest.json is not JSON"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_data_that_were_damaged(failure, tmp_path, made, what):
    name, spoil, sentence = DAMAGED[what]
    path = made / name
    path.unlink() if spoil == "unlink" else spoil(path)
    said = failure("--problem=translate_tsv", f"--data_dir={tmp_path / 'data'}")
    assert said.startswith("the data of translate_tsv are damaged: ")
    # The numbers in "N bytes, M were written" may be any.
    assert sentence.replace(" bytes were", " were") in said and name in said
    command = said.splitlines()[-1].split()
    assert command[:2] == ["t2tp_datagen", "--problem=translate_tsv"]
    # The command has the options of the data's generation, even if the manifest is lost.
    options = command[3].removeprefix("'").removeprefix("--problem_options=").removesuffix("'")
    assert problems.find("translate_tsv", options).generation_options() == {
        "vocab_size": 290,
        "vocabulary_from": "",
        "files": f"{tmp_path}/a.tsv",
        "validation_files": "",
        "test_files": "",
    }
    assert command[4] == "--overwrite"
