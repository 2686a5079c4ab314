"""`t2tp_bleu` as people type it (in this process)."""

import pytest
import sacrebleu

from tests.trainer.command import call, refused
from tests.trainer.hooks.events import read_scalars

REFERENCE = ["The cat sat on the mat today.", "A dog ran over the green hill there."]
GOOD = ["The cat sat on the mat today.", "a dog ran over the green hill There."]
BAD = ["The cat lay on a mat.", "A dog was over there."]


@pytest.fixture
def files(tmp_path):
    """Writes a reference, and a directory of translations."""
    directory = tmp_path / "decoded"
    directory.mkdir()
    texts = {"news-100": BAD, "news-2000": GOOD, "notes.txt": BAD}
    for name, lines in texts.items():
        (directory / name).write_text("\n".join(lines) + "\n", "utf-8")
    reference = tmp_path / "news"
    reference.write_text("\n".join(REFERENCE) + "\n", "utf-8")
    return reference, directory


def bleu(lines: list[str], lowercase: bool) -> float:
    return sacrebleu.corpus_bleu(lines, [REFERENCE], lowercase=lowercase).score


def test_a_translation_is_scored_as_sacrebleu_does(files, capsys):
    reference, directory = files
    assert call("t2tp_bleu", translation=directory / "news-2000", reference=reference) == 0
    said = capsys.readouterr().out
    assert said == f"BLEU_cased = {bleu(GOOD, False):6.2f}\nBLEU_uncased = 100.00\n"
    assert bleu(GOOD, False) < 99


def test_a_directory_becomes_curves(files, capsys):
    reference, directory = files
    assert call("t2tp_bleu", translations_dir=directory, reference=reference) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["step", "100"],
        ["step", "2000"],
    ]
    scalars = read_scalars(directory)
    assert set(scalars) == {"BLEU_cased", "BLEU_uncased"}
    for name, lowercase in (("BLEU_cased", False), ("BLEU_uncased", True)):
        assert scalars[name] == {
            100: pytest.approx(bleu(BAD, lowercase), rel=1e-5),
            2000: pytest.approx(bleu(GOOD, lowercase), rel=1e-5),
        }


def test_wrong_input_is_one_sentence(files, tmp_path, capsys):
    reference, directory = files
    short = tmp_path / "short"
    short.write_text("one line\n", "utf-8")
    empty = tmp_path / "empty"
    empty.touch()
    (tmp_path / "twice").mkdir()
    for name in ("a-7", "b-7"):
        (tmp_path / "twice" / name).write_text("x\ny\n", "utf-8")
    good, twice = directory / "news-2000", tmp_path / "twice"
    for flags, says in (
        ({"translation": good}, "give --reference"),
        ({"reference": reference}, "either --translation or --translations_dir"),
        ({"translation": good, "reference": short}, "news-2000 has 2 lines, and"),
        ({"translation": good, "reference": "/dev/zero"}, "/dev/zero has over"),
        ({"translation": empty, "reference": empty}, "empty has 0 lines"),
        ({"translations_dir": tmp_path, "reference": reference}, "no file named NAME-STEP"),
        ({"translations_dir": twice, "reference": reference}, "two translations of step 7"),
    ):
        assert says in refused(capsys, "t2tp_bleu", **flags)
