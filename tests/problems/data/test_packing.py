"""Windows over three documents of 5, 2 and 4 tokens; token 1 is EOS."""

import numpy as np
import pytest

from t2tp.problems.data.columns import Column
from t2tp.problems.data.packing import PackedWindows
from t2tp.problems.data.shards import ShardWriter
from t2tp.problems.vocab.characters import CharacterVocabulary

DOCUMENTS = [[10, 11, 12, 13, 1], [20, 1], [30, 31, 32, 1]]


def column(directory, shards) -> Column:
    """Writes the documents, in shards of these sizes."""
    documents = iter(DOCUMENTS)
    for shard, count in enumerate(shards):
        with ShardWriter(directory, str(shard), {"targets": np.dtype("<u2")}) as writer:
            for _ in range(count):
                writer.add({"targets": np.array(next(documents))})
    files = [directory / f"{shard}.targets" for shard in range(len(shards))]
    return Column(files, np.dtype("<u2"))


@pytest.fixture(params=[(3,), (1, 2), (1, 0, 1, 1)], ids=str)
def windows(tmp_path, request) -> PackedWindows:
    return PackedWindows(column(tmp_path, request.param), 4, CharacterVocabulary())


class LossyVocabulary(CharacterVocabulary):
    """A vocabulary whose tokens do not spell the text, like a WordPiece tokenizer's."""

    is_lossless = False


def test_bytes_are_of_the_text_even_if_tokens_do_not_spell_it(tmp_path):
    windows = PackedWindows(column(tmp_path, (3,)), 4, LossyVocabulary(), text_bytes=24)
    of_windows = [windows.count_bytes(np.array([each])) for each in range(3)]
    assert of_windows == [12, 6, 6]  # the windows have 4, 2 and 2 tokens with bytes
    lossless = PackedWindows(column(tmp_path, (3,)), 4, CharacterVocabulary(), text_bytes=24)
    assert lossless.count_bytes(np.array([0, 1, 2])) == 8


def read(windows, feature, examples, columns=slice(None)):
    values = windows.read(feature, np.array(examples), (columns,))
    assert values.dtype == np.int32
    return values.tolist()


ROWS = {
    "targets": [[10, 11, 12, 13], [1, 20, 1, 30], [31, 32, 1, 0], [0, 0, 0, 0]],
    "targets_segmentation": [[1, 1, 1, 1], [1, 2, 2, 3], [1, 1, 1, 0], [0, 0, 0, 0]],
    "targets_position": [[0, 1, 2, 3], [0, 0, 1, 0], [0, 1, 2, 0], [0, 0, 0, 0]],
}


@pytest.mark.parametrize("feature", ROWS)
def test_documents_lie_end_to_end(windows, feature):
    """Segments count the documents of a window from 1, and positions restart with each."""
    assert len(windows) == 3
    assert read(windows, feature, [0, 1, 2, -1]) == ROWS[feature]


def test_documents_need_not_be_told_apart(tmp_path):
    windows = PackedWindows(column(tmp_path, (3,)), 4, CharacterVocabulary(), separate=False)
    segments = read(windows, "targets_segmentation", [1, 2, -1])
    assert segments == [[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert read(windows, "targets_position", [1, 2]) == [[0, 1, 2, 3], [0, 1, 2, 0]]


@pytest.mark.parametrize(("separate", "before_20"), [(True, 0), (False, 1)])
def test_a_window_has_the_token_before_it_unless_a_document_begins(tmp_path, separate, before_20):
    written = column(tmp_path, (1, 2))
    for length, previous in ((4, [0, 13, 30, 0]), (5, [0, before_20, 32, 0])):
        windows = PackedWindows(written, length, CharacterVocabulary(), separate)
        values = windows.read("targets_previous", np.array([0, 1, 2, -1]), ())
        assert values.dtype == np.int32
        assert values.tolist() == previous


@pytest.mark.parametrize("feature", ["targets", "targets_segmentation", "targets_position"])
def test_a_part_is_the_part_of_the_whole(windows, feature):
    whole = np.array(read(windows, feature, [2, 0, -1, 1]))
    assert read(windows, feature, [0, -1], slice(1, 3)) == whole[1:3, 1:3].tolist()
    assert read(windows, feature, [2, 1], slice(3, 4)) == whole[[0, 3], 3:4].tolist()
