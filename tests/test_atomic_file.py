"""Files are written completely or not at all; leftovers of killed writers are removed."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from t2tp.atomic_file import is_unfinished, remove_unfinished, unfinished_path, write_text
from tests.killed import killed_before_renaming


def test_what_a_killed_writer_leaves_is_known_by_its_name_and_removed(tmp_path):
    state = tmp_path / "state.json"
    write_text(state, "old")
    killed_before_renaming(lambda: write_text(state, "new"))
    assert state.read_text() == "old"
    (left,) = set(tmp_path.iterdir()) - {state}
    assert is_unfinished(left)
    # Another process may still be writing a new file.
    assert remove_unfinished(tmp_path, min_age_seconds=60.0) == [] and left.exists()
    assert remove_unfinished(tmp_path) == [left]
    assert os.listdir(tmp_path) == ["state.json"]


def test_other_names_and_directories_stay(tmp_path):
    names = ["a.tmp", "a.tmp-", "a.tmp-1b", ".tmp-1", "tmp-1", "step-00000001.tmp"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "directory.tmp-1").mkdir()
    assert remove_unfinished(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "directory.tmp-1"])
    assert remove_unfinished(tmp_path / "nowhere") == []


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_a_replaced_file_keeps_its_mode(tmp_path, mode):
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(mode)
    write_text(file, "new")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", mode)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_symlink_stays_and_its_target_is_written(tmp_path, is_there):
    target = tmp_path / "elsewhere" / "target"
    target.parent.mkdir()
    if is_there:
        target.write_text("old")
    (tmp_path / "link").symlink_to("elsewhere/target")
    (tmp_path / "second").symlink_to("link")
    write_text(tmp_path / "second", "new")
    assert (tmp_path / "second").is_symlink() and (tmp_path / "link").is_symlink()
    assert target.read_text() == "new"


def test_a_device_is_written_into_and_stays_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # the device number of /dev/null
    except PermissionError:
        pytest.skip("only root makes devices")
    try:
        write_text(device, "text")
    except PermissionError:
        pytest.skip("the file system has no devices")
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert os.listdir(tmp_path) == ["null"]


def test_a_pipe_is_written_into(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit((tmp_path / "pipe").read_text)
        write_text(tmp_path / "pipe", "text")
        assert read.result() == "text"
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)


@pytest.mark.parametrize("redirected", [True, False])
def test_standard_output_gets_the_text(tmp_path, redirected):
    """/dev/stdout is a link; the test uses another link, because a bug would replace it."""
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    code = f"print('before', flush=True); write_text({str(tmp_path / 'stdout')!r}, 'text')"
    command = [sys.executable, "-c", f"from t2tp.atomic_file import write_text; {code}"]
    with (tmp_path / "file").open("w") as file:
        done = subprocess.run(command, stdout=file if redirected else subprocess.PIPE, check=True)
    output = (tmp_path / "file").read_bytes() if redirected else done.stdout
    assert output == b"before\ntext"


@pytest.mark.parametrize("path", ["loop", "directory", "missing/file"])
def test_a_path_that_cannot_be_written_is_named(tmp_path, path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match=path):
        write_text(tmp_path / path, "text")
    assert sorted(os.listdir(tmp_path)) == ["directory", "loop"]


def test_a_link_with_the_temporary_name_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("precious")
    unfinished_path(tmp_path / "file").symlink_to(tmp_path / "other")
    write_text(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"
    assert (tmp_path / "other").read_text() == "precious"
