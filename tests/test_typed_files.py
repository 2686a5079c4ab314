"""Any file from an untrusted source ends quickly, with success or one sentence."""

import json
import os
import shutil
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2tp import typed_files
from t2tp.huggingface.safetensors_file import create
from t2tp.trainer.run_dir import huggingface_files
from t2tp.typed_files import InvalidFileError
from tests.files import STRANGE, files_of_at_most, places, with_value
from tests.huggingface.tiny_files import CHAT_TEMPLATE, END, write_tiny_llama
from tests.trainer.command import call

pytest.importorskip("safetensors", reason="pip install -e '.[text]'")

FILES = (
    *("config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "generation_config.json", "preprocessor_config.json"),
    *("model.safetensors", "chat_template.jinja"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / "source"
    write_tiny_llama(directory)
    config = {"eos_token": END, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def run(model):
    made = model.with_name("run")
    assert convert(model, made) == 0
    return made


def convert(source, run):
    return call("t2tp_convert", from_hf=source, output_dir=run)


def check_is_refused(code, capsys, name):
    said = capsys.readouterr().err.strip().splitlines()[-1:]
    assert code in (1, 2), f"exit code {code}"
    assert "Traceback" not in said[0] and said[0].startswith("t2tp_"), (name, said)


@pytest.mark.parametrize("kind", [kind for kind in STRANGE if "link" not in kind])
def test_the_reader_takes_only_files_of_json(tmp_path, kind):
    STRANGE[kind](tmp_path / "file")
    with pytest.raises(InvalidFileError, match=str(tmp_path / "file")):
        typed_files.read_json(tmp_path / "file", dict[str, Any])


def test_a_choice_in_yaml_needs_no_quotes(tmp_path):
    (tmp_path / "file").write_text("a: x\nb: 2\nc: [1]\n")
    schema = {"a": Literal["x"], "b": Literal[2] | str}
    read = typed_files.read_yaml(tmp_path / "file", schema)
    assert (read["a"], read["b"]) == ("x", 2)
    with pytest.raises(InvalidFileError, match="c is a list, and must be a whole number or 'x'"):
        typed_files.read_yaml(tmp_path / "file", {"c": int | Literal["x"]})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["a pipe", "a device", "deep lists", "binary", "a link outside"])
def test_a_model_of_hostile_files_is_refused_in_a_sentence(model, tmp_path, capsys, name, kind):
    source = shutil.copytree(model, tmp_path / "source")
    (source / name).unlink(missing_ok=True)
    STRANGE[kind](source / name)
    code = convert(source, tmp_path / "run")
    if code:
        check_is_refused(code, capsys, name)
        assert [path.name for path in tmp_path.iterdir()] == ["source"]
    else:  # The conversion does not read the file.
        assert name == "chat_template.jinja" or name == "preprocessor_config.json"
        for path in (tmp_path / "run").rglob("*"):
            assert path.is_file() or path.is_dir()


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/b", "..", ""])
def test_names_in_an_index_are_plain(model, tmp_path, capsys, name):
    source = shutil.copytree(model, tmp_path / "source")
    (tmp_path / "secret").write_bytes((source / "model.safetensors").read_bytes())
    index = {"weight_map": {"model.norm.weight": name}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    check_is_refused(convert(source, tmp_path / "run"), capsys, name)


@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors"])
def test_links_stay_inside_the_directory_or_the_hubs_cache(model, tmp_path, capsys, name):
    snapshot = tmp_path / "models--a--b/snapshots/123"
    shutil.copytree(model, snapshot)
    (snapshot / "notes.txt").write_text("notes")
    blobs = tmp_path / "models--a--b/blobs"
    blobs.mkdir()
    for target in (blobs / "456", tmp_path / "secret"):
        (snapshot / name).rename(target)
        (snapshot / name).symlink_to(os.path.relpath(target, snapshot))
        code = convert(snapshot, tmp_path / f"run-{target.name}")
        if target.name == "secret":
            check_is_refused(code, capsys, name)
        else:
            assert code == 0
            kept = huggingface_files.directory_in(tmp_path / "run-456")
            assert not any(path.is_symlink() for path in kept.iterdir())
            (snapshot / name).unlink()
            shutil.copyfile(target, snapshot / name)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


def read_all(source):
    """Reads all that conversion and decoding read of a directory before they start to work."""
    from t2tp.huggingface.model_directory import ModelDirectory
    from t2tp.problems.vocab.chat_template import ChatTemplate
    from t2tp.problems.vocab.tokenizer import TokenizerVocabulary

    found = ModelDirectory.from_path(source)
    hparams = found.hparams()
    found.variables(hparams)
    found.check_tokenizer(hparams.vocab_size)
    vocabulary = TokenizerVocabulary.from_directory(source)
    vocabulary.decode(vocabulary.encode("the quick"))
    assert len(vocabulary.token_bytes)
    template = ChatTemplate.from_directory(source)
    template.render([{"role": "user", "content": "a"}])


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES[:-2])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_value_of_any_entry_is_taken_or_refused(model, tmp_path_factory, name, data):
    source = tmp_path_factory.mktemp("hostile") / "source"
    shutil.copytree(model, source)
    if name == "model.safetensors.index.json":
        content = {"weight_map": {"model.norm.weight": "model.safetensors"}}
    elif (source / name).exists():
        content = json.loads((source / name).read_text())
    else:
        content = {"eos_token_id": [1, 2], "image_mean": [0.1], "rescale_factor": 1.0}
    path = data.draw(st.sampled_from([(), *places(content)]))
    (source / name).write_text(json.dumps(with_value(content, path, data.draw(VALUES))))
    try:
        read_all(source)
    except (ValueError, OSError) as error:
        assert str(error)
    finally:
        shutil.rmtree(source.parent)


def test_the_space_of_tensors_is_reserved_before_they_are_written(tmp_path):
    create(tmp_path / "tensors", {"a": ("F32", (1 << 18,))})
    status = (tmp_path / "tensors").stat()
    assert status.st_blocks * 512 >= status.st_size > 1 << 20


@pytest.mark.slow
def test_a_full_disk_is_a_sentence_and_leaves_nothing(run, tmp_path, capsys):
    with files_of_at_most(20_000):  # larger than any of the other files
        assert call("t2tp_convert", to_hf=tmp_path / "back", output_dir=run) == 2
    assert (run / "checkpoints").exists()
    assert "model.safetensors" in capsys.readouterr().err.strip().splitlines()[-1]
    assert not list(tmp_path.iterdir())
