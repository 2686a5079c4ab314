"""A cluster file is read strictly: each error names the file, the key and a valid value."""

import copy
import dataclasses
import math
from pathlib import Path

import pytest

from t2tp.planner import ClusterFile, ClusterFileError, Plan
from t2tp.planner.cluster_file import AttentionKernel, Device, Link, SoftwareStack
from t2tp.toml import toml_text, tomllib
from t2tp.trainer.planning import request
from tests.models.small_lm import make_hparams

WHOLE = tomllib.loads(Path(__file__).with_name("whole_cluster.toml").read_text("utf-8"))


def places(table, path=()):
    """Yields the path of each value that is not a table."""
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        is_list = isinstance(value, list) and isinstance(value[0], dict)
        if isinstance(value, dict) or is_list:
            yield from places(value, (*path, key))
        else:
            yield (*path, key)


def changed(path, value):
    table = copy.deepcopy(WHOLE)
    inner = table
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return table


def load(table, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(toml_text(table))
    return ClusterFile.load(str(path))


def refused(table, tmp_path, name):
    with pytest.raises(ClusterFileError) as error:
        load(table, tmp_path)
    said = str(error.value)
    assert "mine.toml" in said and name in said and "\n" not in said
    return said


PATHS = list(places(WHOLE))


def name_of(path):
    return ".".join(map(str, path))


def test_the_whole_file_has_every_key():
    kinds = (ClusterFile, Device, Link, SoftwareStack, AttentionKernel)
    known = {f.name for kind in kinds for f in dataclasses.fields(kind)}
    assert known <= {key for path in PATHS for key in path}


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_no_value_of_another_type_or_out_of_range_is_taken(path, tmp_path):
    inner = WHOLE
    for key in path:
        inner = inner[key]
    numbers = [math.nan, math.inf, -1.0, 1e40, "much", [1.0]]
    wrong = {
        bool: [1, "true"],
        str: [1, "nonsense"] if path[-1] in ("cards", "attention", "stack", "like") else [1],
        list: [
            [],
            [[1, 2]],
            [[2.0, 0.1, 1.0], [1.0, 0.1, 1.0]],
            [[1.0, 2.0, 0.1]],
            [[0.0, 1.0, 1]],
        ],
    }.get(type(inner), numbers)
    # Times, sizes, prices and counts have no upper limit.
    sizes = ("memory", "bandwidth", "price_per_hour", "float32", "bfloat16", "reserved")
    layers = ("cores", "cached_layers", "unsharded_layers", "steps_per_launch")
    devices = ("devices", "shared_by", "host_devices", "processes")
    for value in wrong:
        if value == 1e40 and path[-1] in (*sizes, *layers, *devices):
            continue
        refused(changed(path, value), tmp_path, str(path[-1]))


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_a_misspelled_key_is_met_with_the_nearest(path, tmp_path):
    *_, key = path
    inner = table = copy.deepcopy(WHOLE)
    for part in path[:-1]:
        inner = inner[part]
    inner[f"{key}x"] = inner.pop(key)
    assert key in refused(table, tmp_path, f"{key}x").replace(f"{key}x", "")


WRONG = {
    "reserved": (("device", "reserved"), 2e9),
    "devices": (("links", 0, "devices"), 0),
    "links[1].devices": (("links", 1, "devices"), 2),
    "farthest level": (("links", 1, "devices"), 32),
    "peak": (("device", "peak"), {"float33": 1e12}),
    "missing": (("links", 1, "latency"), None),
    "product": (("stacks", "plain", "product"), 83.6),
    "overlap": (("stacks", "plain", "overlap"), 1.5),
    "launch": (("device", "launch"), 2e-3),
    "latency": (("links", 0, "latency"), 0.2),
    "norm": (("stacks", "plain", "shares"), {"nrm": 0.5}),
}


@pytest.mark.parametrize("name", WRONG)
def test_keys_that_contradict_each_other_are_refused(name, tmp_path):
    refused(changed(*WRONG[name]), tmp_path, name)


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    wanted = request("transformer_lm", make_hparams(mesh_shape="data:4", layout="batch:data"), 30)
    return wanted.lowered(load(WHOLE, tmp_path_factory.mktemp("whole")))


def test_whatever_is_taken_can_be_planned_with(step, tmp_path):
    """Plans with the smallest and largest value of each number; the step takes finite seconds."""
    numbers = [path for path in PATHS if path[-1] not in ("name", "source", "like", "stack")]
    for path in numbers:
        for value in (0, 1, 1e-9, 1e30):
            table = changed(path, value)
            try:
                cluster = load(table, tmp_path)
            except ClusterFileError:
                continue
            plan = Plan.from_step(step, cluster, title="", tokens=1, dtype="float32")
            assert 0 < plan.seconds < math.inf and math.isfinite(plan.interval[1]), path


def test_a_stack_is_chosen_by_name(tmp_path):
    cluster = load(WHOLE, tmp_path)
    assert cluster.stack == "plain" and cluster.with_stack("fast").software.product == 0.9
    faster = cluster.with_stack("faster").software
    assert (faster.product, faster.memory) == (0.9, 0.9)
    assert cluster.peak("float16") == cluster.peak("float32") == 1e12
    with pytest.raises(ClusterFileError, match="did you mean fast"):
        cluster.with_stack("fst")


@pytest.mark.parametrize(("name", "says"), [("a10", "a100"), ("none.toml", "none.toml")])
def test_an_unknown_cluster_is_one_sentence(name, says):
    with pytest.raises(ClusterFileError, match=says):
        ClusterFile.load(name)


def test_what_is_not_toml_is_refused(tmp_path):
    (tmp_path / "mine.toml").write_text("name = ")
    with pytest.raises(ClusterFileError, match="mine.toml is not TOML"):
        ClusterFile.load(str(tmp_path / "mine.toml"))


def test_a_file_takes_the_keys_of_another_file(tmp_path):
    like = {"like": "h100", "name": "mine", "device": {"memory": 1e11}}
    mine, h100 = load(like, tmp_path), ClusterFile.load("h100")
    assert (mine.device.memory, mine.device.peak) == (1e11, h100.device.peak)
    assert mine.stacks == h100.stacks
    refused({**like, "like": "h10"}, tmp_path, "h100")
