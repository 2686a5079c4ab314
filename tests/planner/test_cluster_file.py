"""A cluster file is read strictly; its errors say what to write instead."""

from __future__ import annotations

import pytest

from t2tp.planner import ClusterFile, ClusterFileError

GOOD = """
name = "mine"
host_devices = 2
[device]
name = "d"
memory = 1e9
bandwidth = 1e11
peak = {float32 = 1e12}
[[links]]
name = "inside a host"
bandwidth = 1e10
latency = 1e-6
[stacks.plain]
[stacks.fast]
product = 0.9
"""

BAD = {
    "unknown key": (GOOD.replace("memory =", "memry ="), "did you mean memory?"),
    "missing key": (GOOD.replace("latency = 1e-6", ""), "the key 'latency' is missing"),
    "text for a number": (GOOD.replace("memory = 1e9", 'memory = "80G"'), "must be a number"),
    "negative": (GOOD.replace("memory = 1e9", "memory = -1"), "of at least 0"),
    "no stacks": (GOOD.partition("[stacks.plain]")[0], "it has no [stacks]"),
    "attention": (GOOD + 'attention = "fuse"', "did you mean fused"),
    "dtype": (GOOD.replace("float32", "float33"), "did you mean float32"),
    "not TOML": ("name = ", "not TOML"),
}


def test_a_file_is_read(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD)
    cluster = ClusterFile.load(str(tmp_path / "mine.toml"), "fast")
    assert cluster.stack == "fast" and cluster.software.product == 0.9
    assert cluster.peak("bfloat16") == cluster.peak("float32") == 1e12


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_file_is_one_sentence(case, tmp_path):
    text, says = BAD[case]
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ClusterFileError, match="^cluster ") as error:
        ClusterFile.load(str(tmp_path / "mine.toml"))
    assert says in str(error.value)


def test_an_unknown_name_is_met_with_the_known_ones():
    with pytest.raises(ClusterFileError, match="a100"):
        ClusterFile.load("a10")
