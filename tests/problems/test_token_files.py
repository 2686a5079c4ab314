from __future__ import annotations

import numpy as np
import pytest

from t2tp.problems.token_files import TokenFile, TokenWriter


@pytest.mark.parametrize(
    ("vocab_size", "bytes_of_a_token"), [(8192, 2), (1 << 16, 2), ((1 << 16) + 1, 4)]
)
def test_what_is_written_is_read(tmp_path, vocab_size, bytes_of_a_token):
    last = vocab_size - 1
    with TokenWriter(tmp_path, "train", vocab_size) as writer:
        writer.write([5, last, 1])
        writer.write([7, 1])
        assert (writer.documents, writer.tokens) == (2, 5)
    file = TokenFile(tmp_path, "train", vocab_size)
    assert file.tokens.tolist() == [5, last, 1, 7, 1]
    assert file.begins.tolist() == [0, 3, 5]
    assert (tmp_path / "train.tokens").stat().st_size == 5 * bytes_of_a_token


def test_files_are_mapped_not_loaded(tmp_path):
    with TokenWriter(tmp_path, "train", 300) as writer:
        writer.write([5, 1])
    file = TokenFile(tmp_path, "train", 300)
    assert isinstance(file.tokens, np.memmap) and isinstance(file.begins, np.memmap)


def test_counts_are_how_often_each_token_occurs(tmp_path, monkeypatch):
    monkeypatch.setattr("t2tp.problems.token_files._COUNT_STEP", 2)
    with TokenWriter(tmp_path, "train", 6) as writer:
        writer.write([5, 2, 2, 2, 1])
    assert TokenFile(tmp_path, "train", 6).counts(6).tolist() == [0, 1, 3, 0, 0, 1]
