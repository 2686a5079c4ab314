import pytest

from t2tp import problems
from t2tp.problems.text_scores import SCORES, score

REFERENCES = ["The cat sat on the mat near the door.", "It was a good day for all of us."]
CLOSE = ["The cat sat on a mat near the door.", "It was a good day for us all."]


def test_what_is_close_scores_less_and_what_is_other_next_to_nothing():
    close = score(list(SCORES), CLOSE, REFERENCES)
    other = score(list(SCORES), ["zzz qqq", "xxx"], REFERENCES)
    for name in SCORES:
        assert other[name] < 3
        assert (50 if name != "exact_match" else -1) < close[name] < 100


def test_words_count_without_case_articles_and_punctuation():
    assert score(["word_f1"], ["the Cat, sat"], ["A cat sat!"])["word_f1"] == 100
    # "cat" in common, of two and of three words: 2 * 1 / 5.
    assert score(["word_f1"], ["cat ran"], ["cat sat down"])["word_f1"] == pytest.approx(40)
    assert score(["word_f1"], ["", "x"], ["", ""])["word_f1"] == 50


@pytest.mark.parametrize("predictions", [[], ["x"], ["x"] * 3])
def test_there_must_be_a_prediction_for_each_reference(predictions):
    with pytest.raises(ValueError, match=f"{len(predictions)} predictions and 2 references"):
        score(["bleu"], predictions, REFERENCES)


CASES = [
    ("translate_tsv", ["bleu", "chrf"]),
    ("summarize_cnn_dailymail32k", ["rouge1", "rouge2", "rouge_l"]),
    ("mixture:translate_tsv=1,translate_textfiles=1", ["bleu", "chrf"]),
    ("languagemodel_python_stdlib", ["exact_match"]),
]


@pytest.mark.parametrize(("name", "names"), CASES)
def test_problems_name_what_their_decodes_are_scored_by(name, names):
    scores = problems.find(name).decode_metrics(REFERENCES, REFERENCES)
    assert scores == pytest.approx(dict.fromkeys(names, 100.0))
