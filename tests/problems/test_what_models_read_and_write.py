"""A problem knows what its models read and write; the programs query it."""

import pytest

from t2tp import problems
from t2tp.problems.algorithmic import AlgorithmicProblem
from t2tp.problems.problem import NO_EOS
from t2tp.problems.vocab.vocabulary import END_OF_DOCUMENT

# Problem: reads inputs, writes tokens, writes classes, generates images, EOS.
KINDS = {
    "languagemodel_python_stdlib": (False, True, False, False, END_OF_DOCUMENT),
    "translate_tsv": (True, True, False, False, END_OF_DOCUMENT),
    "algorithmic_identity_binary40": (True, True, False, False, END_OF_DOCUMENT),
    "text2class_records": (True, False, True, False, END_OF_DOCUMENT),
    "image_digits": (True, False, True, False, END_OF_DOCUMENT),
    "image_digits_gen": (False, False, False, True, NO_EOS),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_each_family_says_what_its_models_read_and_write(name, is_mixed):
    problem = problems.find(f"mixture:{name}=1" if is_mixed else name)
    images = problem.generated_images
    assert KINDS[name] == (
        problem.reads_inputs,
        problem.writes_tokens,
        problem.writes_classes,
        images is not None,
        problem.eos_id,
    )


@pytest.mark.parametrize("suffix", ["", "_rev", "_copy"])
def test_a_codec_reads_and_writes_the_stored_examples(tmp_path, suffix):
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"word {n}\tWort {n} ä\n" for n in range(100)))
    problem = problems.find(f"translate_tsv{suffix}", f"files={file},vocab_size=300")
    problem.prepare(tmp_path)
    codec = problem.codec(tmp_path)
    for number in range(5):
        sample = problem.decode_example(tmp_path, "validation", number % 3)
        for text in sample.values():
            assert codec.decode([*codec.encode(text), problem.eos_id, 0]) == text


def test_a_mixture_reads_and_writes_as_its_problems_do(tmp_path, monkeypatch):
    counts = {"train": 10, "validation": 5, "test": 5}
    monkeypatch.setattr(AlgorithmicProblem, "sample_counts", counts)
    mixture = problems.find("mixture:algorithmic_reverse_binary40,algorithmic_identity_binary40")
    mixture.prepare(tmp_path)
    assert mixture.codec(tmp_path).encode("1 0 1") == [3, 2, 3]
