"""Lists of hosts, and the number of this host in them."""

import json

import pytest

from t2tp.trainer.cli.launch import hosts_of, parse_hosts

CASES = [
    ("a:1,b:2", ["a:1", "b:2"]),
    ("n[07-09,12],x1:84", ["n07:84", "n08:84", "n09:84", "n12:84", "x1:84"]),
    ("run-[0-1].run:8470", ["run-0.run:8470", "run-1.run:8470"]),
    ("10.0.0.1:5", ["10.0.0.1:5"]),
]


@pytest.mark.parametrize(("text", "addresses"), CASES)
def test_lists_of_hosts(text, addresses):
    assert parse_hosts(text) == tuple(addresses)


@pytest.mark.parametrize("text", ["a,b", "a[1-:5", "a[x]:5", "a:1,a:1", "a:99999", "[1-2]b[3]:4"])
def test_wrong_lists_are_refused(text):
    with pytest.raises(ValueError, match="--hosts|address"):
        parse_hosts(text)


def test_the_index_comes_from_the_flag_or_the_scheduler():
    config = {"cluster": {"chief": ["c:1"], "worker": ["w:1", "x:1"]}}
    config["task"] = {"type": "worker", "index": 1}
    tf_config = {"TF_CONFIG": json.dumps(config)}
    assert hosts_of("a:1,b:1", 1, {"JOB_COMPLETION_INDEX": "0"}) == (("a:1", "b:1"), 1)
    assert hosts_of("a:1,b:1", None, {"JOB_COMPLETION_INDEX": "1"})[1] == 1
    assert hosts_of("a:1,b:1", None, {"SLURM_NODEID": "1"})[1] == 1
    assert hosts_of("", None, tf_config) == (("c:1", "w:1", "x:1"), 2)
    assert hosts_of("", None, {}) == ((), 0)


REFUSED = [
    ("a:1,b:1", None, {}, "--host_id is missing"),
    ("a:1,b:1", 2, {}, "one of 0 to 1"),
    ("", 1, {}, "needs --hosts"),
    ("", None, {"TF_CONFIG": '{"cluster": []}'}, "TF_CONFIG"),
]


@pytest.mark.parametrize(("hosts", "host_id", "environment", "said"), REFUSED)
def test_contradictions_are_refused(hosts, host_id, environment, said):
    with pytest.raises(ValueError, match=said):
        hosts_of(hosts, host_id, environment)
