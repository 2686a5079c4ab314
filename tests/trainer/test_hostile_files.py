"""Any entry of any file of somebody else's run or data is read, or refused in one sentence."""

import hashlib
import json
import re
import shutil
import zlib

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

from t2tp import checkpoint, problems
from t2tp.checkpoint import inspection
from t2tp.checkpoint.reading import tensors_in
from t2tp.problems.data import manifest
from t2tp.problems.data.manifest import DamagedDataError, FileState
from t2tp.trainer.run_dir import run_files
from t2tp.typed_files import InvalidFileError
from tests.files import STRANGE, flip, places, with_value
from tests.trainer.command import call, refused
from tests.trainer.conftest import PROBLEM

VALUES = [None, True, -1, 5, 1e300, 2**70, "x", "../x", "|O", "a=b", [], [1], [[]], {}, {"a": 1}]


def check_any_value(path, seal, read):
    """Sets each entry of a JSON file to some of `VALUES`; an error of `read` is a sentence."""
    original = json.loads(path.read_text())
    refused = 0
    for number, place in enumerate([(), *places(original)]):
        for value in VALUES[number % 5 :: 5]:
            path.write_text(json.dumps(with_value(original, place, value)))
            seal()
            try:
                read()
            except (ValueError, OSError) as error:
                assert str(error), (place, value)
                refused += 1
            except Exception as error:
                raise AssertionError(f"{path.name}: {place} = {value!r}: {error!r}") from error
    path.write_text(json.dumps(original))
    seal()
    read()
    assert refused > 5


def seal_data(directory):
    """Makes the checksums of a problem's data again, as somebody else can."""
    path = directory / "manifest.json"
    fields = json.loads(path.read_text())
    if not isinstance(fields, dict):
        return
    for name, state in fields["files"].items() if isinstance(fields.get("files"), dict) else ():
        if name.endswith((".checks", ".json")) and isinstance(state, dict):
            made = FileState.from_file(directory / name) if (directory / name).is_file() else None
            state.update(vars(made) if made else {})
    fields.pop("checksum", None)
    fields["checksum"] = manifest._checksum(fields)
    path.write_text(json.dumps(fields))


@pytest.fixture
def data(data_dir, tmp_path):
    return shutil.copytree(data_dir, tmp_path / "data")


def read_data(data):
    problem = problems.find(PROBLEM)
    problem.check_prepared(data)
    problem.stored(data, "train")["targets"].check()
    problem.decode_example(data, "validation", 0)


@pytest.mark.parametrize("name", ["manifest.json", "train-00000-of-*.checks"])
def test_any_entry_of_data_is_read_or_refused(data, name):
    directory = problems.find(PROBLEM).directory(data)
    (path,) = sorted(directory.glob(name))[:1]
    check_any_value(path, lambda: seal_data(directory), lambda: read_data(data))


def test_ids_beyond_the_vocabulary_are_refused(data):
    problem = problems.find(PROBLEM)
    directory = problem.directory(data)
    path = sorted(directory.glob("train-00000-of-*.targets"))[0]
    ids = np.fromfile(path, "<u2")
    ids[len(ids) // 2] = problem.vocab_sizes(data)["targets"]
    ids.tofile(path)
    checks = path.with_suffix(".checks")
    fields = json.loads(checks.read_text())
    content, size = path.read_bytes(), fields["block_bytes"]
    blocks = [zlib.crc32(content[at : at + size]) for at in range(0, len(content), size)]
    fields["crc32"][path.name] = np.array(blocks, "<u4").tobytes().hex()
    checks.write_text(json.dumps(fields))
    states = json.loads((directory / "manifest.json").read_text())
    states["files"][path.name] = vars(FileState.from_file(path))
    (directory / "manifest.json").write_text(json.dumps(states))
    seal_data(directory)
    with pytest.raises(DamagedDataError, match="has the number 512, and"):
        problem.check_contents(data)
    source = problem.train_examples(data, 64)
    with pytest.raises(DamagedDataError, match="has the number 512, and"):
        source.read("targets", np.arange(len(source)), (slice(None),))


def test_sizes_other_than_the_manifests_are_refused(data):
    path = problems.find(PROBLEM).directory(data) / "manifest.json"
    fields = json.loads(path.read_text())
    fields["splits"]["train"]["examples"] += 1
    path.write_text(json.dumps(fields))
    seal_data(path.parent)
    with pytest.raises(DamagedDataError, match="other than its manifest says"):
        problems.find(PROBLEM).train_examples(data, 64)


def test_a_damaged_index_of_rows_is_found_and_made_again(tmp_path, capfd):
    (tmp_path / "pairs.tsv").write_text("".join(f"{n}\t{n * 7}\n" for n in range(200)))
    options = f"files={tmp_path}/pairs.tsv,vocab_size=280,arrangement=packed"
    problem = problems.find("translate_tsv", options)
    problem.prepare(tmp_path / "data")

    def rows():
        source = problem.train_examples(tmp_path / "data", 32)
        return source.read("targets", np.arange(len(source)), (slice(None),)).tolist()

    before = rows()
    (index,) = problem.directory(tmp_path / "data").glob(".index/train-*/examples")
    flip(index, 8)
    with pytest.raises(DamagedDataError, match="index .* is damaged"):
        problem.check_contents(tmp_path / "data")
    assert rows() == before
    problem.check_contents(tmp_path / "data")
    record = index.with_name("index.json")
    check_any_value(record, lambda: None, lambda: check_rows(problem, tmp_path, rows, before))


def check_rows(problem, tmp_path, rows, before):
    damaged = None
    try:
        problem.check_contents(tmp_path / "data")
    except DamagedDataError as error:
        damaged = error
    assert rows() == before
    if damaged:
        raise damaged


@pytest.mark.parametrize("name", ["metadata.json", "FINISHED"])
def test_any_entry_of_a_checkpoint_is_read_or_refused(trained, name):
    step = trained / "checkpoints/step-00000001"
    marker, body = step / "FINISHED", step / "body.json"
    content = marker.read_bytes().removesuffix(b"\n").rpartition(b"\n")[0]
    body.write_bytes(content)

    def seal():
        fields = json.loads(body.read_text())
        if name == "metadata.json":
            metadata = (step / name).read_bytes()
            sha256 = hashlib.sha256(metadata).hexdigest()
            fields["files"][name] = {"size": len(metadata), "sha256": sha256}
        text = json.dumps(fields).encode()
        marker.write_bytes(text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n")

    path = body if name == "FINISHED" else step / name
    check_any_value(path, seal, lambda: inspection.describe(checkpoint.Checkpoint(step)))


@given(st.data())
def test_an_index_of_any_entries_is_read_or_refused(data):
    """TensorFlow's own reader of such entries ends the process."""
    sizes = st.integers(-2, 5) | st.sampled_from([2**40, 2**62])
    entry = BundleEntryProto(dtype=data.draw(st.integers(0, 130)))
    for _ in range(data.draw(st.integers(0, 3))):
        entry.shape.dim.add().size = data.draw(sizes)
        if data.draw(st.booleans()):
            entry.slices.add().extent.add(start=data.draw(sizes), length=data.draw(sizes))
    value = data.draw(st.just(entry.SerializeToString()) | st.binary(max_size=20))
    try:
        ((shape, dtype),) = tensors_in([(b"", b"\xff"), (b"w", value)], 100).values()
        assert 0 <= np.prod(shape, dtype=float) * dtype.size <= 100
    except InvalidFileError as error:
        assert "an impossible entry b'w'" in str(error)


def test_any_entry_of_a_runs_file_is_read_or_refused(trained):
    path = trained / "run.yaml"
    path.write_text(json.dumps(yaml.safe_load(path.read_text())))
    check_any_value(path, lambda: None, lambda: run_files.read(trained))


@pytest.mark.parametrize("change", ["num_hidden_layers: 10000", "d_ff: 1048576"])
@pytest.mark.parametrize("main", ["t2tp_eval", "t2tp_trainer"])
def test_a_large_model_of_a_small_checkpoint_is_not_built(trained, data_dir, capfd, change, main):
    path = trained / "run.yaml"
    path.write_text(re.sub(rf"\b{change.split()[0]} .*", change, path.read_text()))
    more = {"train_steps": 9} if main == "t2tp_trainer" else {}
    assert call(main, output_dir=trained, data_dir=data_dir, **more) == 2
    assert "has far more" in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("kind", ["a pipe", "a device", "deep objects", "binary", "large"])
@pytest.mark.parametrize("name", ["manifest.json", "*.checks", "vocabulary.*", "*.targets"])
def test_strange_files_of_data_are_refused(data, kind, name):
    path = sorted(problems.find(PROBLEM).directory(data).glob(name))[0]
    path.unlink()
    STRANGE[kind](path)
    with pytest.raises(ValueError):
        problems.find(PROBLEM).check_prepared(data)


SIZES = {
    "ones": "hparams: {local_heads: [" + "1," * 300_000 + "1]}",
    "keys": "hparams: {" + "".join(f"a{n}: 1, " for n in range(12_000)) + "}",
    "dots": "hparams: {" + "a." * 100_000 + ": 1}",
    "brackets": "hparams: " + "[" * 100_000,
}


@pytest.mark.parametrize("text", SIZES.values(), ids=SIZES)
def test_the_size_of_a_runs_file_is_limited(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(run_files.RunFileError, match=r"run\.yaml"):
        run_files.read(tmp_path)


def test_a_run_in_part_is_refused(trained, trainer, tmp_path, capfd):
    shutil.rmtree(trained / "checkpoints")
    assert trainer(output_dir=trained) == 2
    assert "put the checkpoints back" in capfd.readouterr().err
    (tmp_path / "run.yaml").symlink_to("/etc/hostname")
    with pytest.raises(run_files.RunFileError, match=r"run\.yaml is a link to"):
        run_files.read(tmp_path)


def test_half_made_data_with_links_are_made_from_the_beginning(tmp_path, monkeypatch):
    """The next attempt neither reads another person's pickles nor writes through links."""
    problem = problems.find(PROBLEM)
    partial, outside = tmp_path / f"data/.{PROBLEM}.partial", tmp_path / "outside"
    with monkeypatch.context() as patch:
        patch.setattr(
            "t2tp.problems.prepare.prepare._fill", lambda *_: (_ for _ in ()).throw(OSError)
        )
        with pytest.raises(OSError):
            problem.prepare(tmp_path / "data")
    assert (partial / ".plan").exists()
    (outside / "train").mkdir(parents=True)
    (outside / "train/samples").write_bytes(b"cos\nabort\n(tR.")
    (outside / "train/begins").write_bytes(np.int64(0).tobytes())
    (partial / ".samples").symlink_to(outside)
    problem.prepare(tmp_path / "data")
    assert sorted(path.name for path in outside.rglob("*")) == ["begins", "samples", "train"]


# Program -> its flag that names a file of settings, and other flags.
READERS = {
    "t2tp_trainer": ("config", {"output_dir": "o", "data_dir": "d"}),
    "t2tp_plan": ("cluster", {"model": "mlp", "hparams_set": "mlp_tiny"}),
}


@pytest.mark.parametrize("kind", ["a pipe", "a device", "deep lists", "binary", "a directory"])
@pytest.mark.parametrize("program", READERS)
def test_strange_files_of_settings_are_refused(tmp_path, capfd, program, kind):
    flag, more = READERS[program]
    path = tmp_path / ("a.yaml" if flag == "config" else "a.toml")
    STRANGE[kind](path)
    assert path.name in refused(capfd, program, **{flag: path}, **more)
