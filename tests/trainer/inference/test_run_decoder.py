"""Decoding from files to files."""

import numpy as np
import pytest

from t2tp import problems
from t2tp.decoding import DecodeOptions
from t2tp.problems.generated_images import GeneratedImages
from t2tp.trainer.errors import UsageError
from t2tp.trainer.inference import files
from t2tp.trainer.inference.run_decoder import Decoded, codec_for, request_for, tokens_of
from t2tp.trainer.local_paths import read_lines


def test_numbers_are_tokens(tmp_path):
    problem = problems.find("algorithmic_reverse_binary40")
    codec = codec_for(problem, tmp_path)
    request = request_for(problem, codec, "1 0 1 1")
    assert request.inputs == [3, 2, 3, 3, 1]
    assert codec.decode(request.inputs) == "1 0 1 1"
    assert list(request.prefix) == []
    begun = request_for(problem, codec, "1 0 1 1", "1 1")
    assert (begun.inputs, begun.prefix) == (request.inputs, [3, 3])
    with pytest.raises(ValueError, match="numbers from 0 to 1"):
        codec.encode("0 2")


def test_problems_without_text_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no targets of text or tokens"):
        codec_for(problems.find("image_digits"), tmp_path)


def test_a_prompt_begins_targets_and_a_source_is_inputs_with_an_end(data_dir):
    problem = problems.find("languagemodel_encodings")
    codec = codec_for(problem, data_dir)
    request = request_for(problem, codec, "import codecs")
    assert request.inputs is None
    assert codec.decode(request.prefix) == "import codecs"
    with pytest.raises(ValueError, match="takes no prefix"):
        request_for(problem, codec, "import", " codecs")


def test_lines_are_read_as_they_are(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffone\n\n two \u2028x\r\nlast".encode())
    assert read_lines(path) == ["one", "", " two \u2028x", "last"]
    path.write_bytes(b"")
    assert read_lines(path) == []
    path.write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(ValueError, match="line 2: not UTF-8"):
        read_lines(path)


def test_a_line_stays_a_line():
    found = [Decoded("a\tb\nc", -1.0), Decoded("d", -2.5)]
    assert files.line_of(found, DecodeOptions()) == "a\\tb\\nc\td"
    scored = files.line_of(found, DecodeOptions(write_beam_scores=True))
    assert scored == "a\\tb\\nc\t-1.0000\td\t-2.5000"


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_written_in_all_their_shades(tmp_path, channels):
    image = pytest.importorskip("PIL.Image")
    images = np.random.default_rng(0).integers(0, 17, [2, 4, 5, channels]).astype(np.uint8)
    brightness = GeneratedImages((4, 5, channels), levels=17).brightness(images)
    paths = files.write_images(tmp_path / "made" / "x", brightness)
    assert [path.name for path in paths] == ["x-000.png", "x-001.png"]
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == ["x-000.png", "x-001.png"]
    for each, path in zip(images, paths, strict=True):
        shades = np.asarray(image.open(path)).reshape(each.shape)
        np.testing.assert_array_equal(np.rint(shades / 255 * 16), each)


def test_token_0_of_a_models_own_tokenizer_is_no_padding(tmp_path):
    """GPT-2's token 0 is an exclamation mark."""
    tokenizers = pytest.importorskip("tokenizers", reason="pip install -e '.[text]'")
    words = {"!": 0, "</s>": 1, "who": 2, "me": 3, "<unk>": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (tmp_path / "pairs.tsv").write_text("who\tme !\n! !\twho\nwho who\t!\n")
    options = f"files={tmp_path}/pairs.tsv,vocabulary_from={tmp_path}"
    problem = problems.find("translate_tsv", options)
    problem.prepare(tmp_path / "data")
    found = set()
    for split in problem.splits:
        source = problem.examples(tmp_path / "data", split, 8)
        rows = np.arange(len(source))
        inputs, targets = (tokens_of(source, name, rows) for name in ("inputs", "targets"))
        found |= {(*i, None, *t) for i, t in zip(inputs, targets, strict=True)}
    assert found == {(2, 1, None, 3, 0, 1), (0, 0, 1, None, 2, 1), (2, 2, 1, None, 0, 1)}
