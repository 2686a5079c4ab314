"""The cache of compiled programs."""

import os
import subprocess
import sys

import pytest

from t2tp.trainer import compilation_cache
from t2tp.trainer.errors import UsageError

COMPILES = """
import sys, tensorflow as tf
from t2tp.trainer import compilation_cache
compilation_cache.use(sys.argv[1])
function = tf.function(lambda x: tf.reduce_sum(tf.sin(x) @ tf.cos(x)), jit_compile=True)
print(float(function(tf.ones([4, 4]))))
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Restores the variables that the cache sets."""
    for name in ("TF_XLA_FLAGS", "XLA_FLAGS"):
        monkeypatch.setenv(name, "")


def entries(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*.pb")}


@pytest.mark.ci_only
@pytest.mark.slow
def test_a_second_process_does_not_compile_and_a_truncated_entry_is_replaced(tmp_path):
    def run():
        command = [sys.executable, "-c", COMPILES, str(tmp_path / "cache")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    printed = run()
    (entry,) = written = entries(tmp_path)
    assert run() == printed and entries(tmp_path) == written
    size = entry.stat().st_size
    for rest in (size - 1, 3, 0):
        os.truncate(entry, rest)
        assert run() == printed and entry.stat().st_size == size


def test_others_must_not_write_in_it(tmp_path):
    tmp_path.chmod(0o777)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    with pytest.raises(UsageError, match=f"others can write in {tmp_path}, and could place code"):
        compilation_cache.use(str(own))
    tmp_path.chmod(0o1777)  # Like /tmp: others cannot rename the directory.
    own.chmod(0o770)
    with pytest.raises(UsageError, match=f"others can write in {own}, and could place code"):
        compilation_cache.use(str(own))
    assert os.environ["TF_XLA_FLAGS"] == ""
    own.chmod(0o700)
    compilation_cache.use(str(own))
    assert str(own) in os.environ["TF_XLA_FLAGS"]


def test_a_default_directory_that_cannot_be_used_is_no_error(tmp_path, monkeypatch, caplog):
    (tmp_path / "t2tp").write_text("not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compilation_cache.use(None)
    assert os.environ["TF_XLA_FLAGS"] == "" and "are not cached" in caplog.text


def test_settings_and_machines_have_their_own_directories(tmp_path, monkeypatch):
    used = []
    for flags, settings in (("", [1]), ("", [1]), ("", [2]), ("--xla_cpu_enable_fast_math", [1])):
        monkeypatch.setenv("XLA_FLAGS", flags)
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        compilation_cache.use(str(tmp_path / "cache"), *settings)
        used.append(os.environ["TF_XLA_FLAGS"])
        assert os.environ["XLA_FLAGS"].startswith(flags)
    assert used[0] == used[1] and len({*used}) == 3
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    compilation_cache.use(str(tmp_path / "other"))  # A started process uses its parent's cache.
    assert os.environ["TF_XLA_FLAGS"] == used[-1] and not (tmp_path / "other").exists()


def test_the_oldest_entries_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache, "_MAX_BYTES", 250)
    for age in range(4):
        path = tmp_path / "cache" / "version" / str(age)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    (tmp_path / "cache").chmod(0o700)
    compilation_cache.use(str(tmp_path / "cache"))
    assert sorted(path.name for path in path.parent.iterdir()) == ["0", "1"]
