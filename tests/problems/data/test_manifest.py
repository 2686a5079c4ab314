import json

import pytest

from t2tp.problems.data.manifest import DamagedDataError, FileState, Manifest, SplitSizes


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "small").write_bytes(b"abc")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "large").write_bytes(bytes(5 << 20))
    files = {name: FileState.from_file(tmp_path / name) for name in ("small", "sub/large")}
    splits = {"train": SplitSizes(1, {"targets": 2}, 3)}
    made = Manifest(
        "p", {"o": 1}, {"from": "x"}, {"t2tp": "0"}, {"targets": "<u2"}, splits, "", files
    )
    made.write(tmp_path)
    return tmp_path


def test_what_is_written_is_read(directory):
    manifest = Manifest.read(directory)
    manifest.check(directory)
    assert manifest.origin == {"from": "x"}
    assert manifest.splits == {"train": SplitSizes(examples=1, values={"targets": 2}, bytes=3)}
    assert (manifest.options, manifest.columns) == ({"o": 1}, {"targets": "<u2"})
    assert list(manifest.files) == ["small", "sub/large"]
    assert manifest.files["small"].sha256.startswith("ba7816bf")  # SHA-256 of "abc", from FIPS 180


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 2, "splits": 3}'])
def test_what_is_no_manifest_is_said(directory, text):
    (directory / "manifest.json").write_text(text)
    with pytest.raises(DamagedDataError, match=r"manifest\.json"):
        Manifest.read(directory)


def test_another_format_is_refused(directory):
    fields = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps(fields | {"format": 1}))
    with pytest.raises(DamagedDataError, match="has format 1, this version of t2tp reads 2"):
        Manifest.read(directory)
