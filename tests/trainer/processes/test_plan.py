"""How many processes a round has, and where they run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2tp.trainer.processes.plan import Offer, Plan, choose, parse_meshes, place


def offers(*numbers: int, has_gpus: bool = False) -> dict[int, Offer]:
    return {
        host: Offer(tuple(f"h{host}:{port}" for port in range(1, number + 1)), has_gpus)
        for host, number in enumerate(numbers)
    }


def test_the_mesh_stays_and_fewer_processes_share_it():
    counts = [choose(offers(*[1] * here), 8, ()) for here in range(9)]
    assert [each and each[0] for each in counts] == [None, 1, 2, 2, 4, 4, 4, 4, 8]


def test_gpus_are_not_divided():
    assert choose(offers(2, 1, has_gpus=True), 4, ()) is None
    assert choose(offers(2, 2, has_gpus=True), 4, ()) == (4, "")


def test_another_mesh_is_taken_where_the_first_does_not_fit():
    meshes = parse_meshes("data:4;model:2 | data:3; model:2|data:2;model:2", 4)
    found = [choose(offers(*[1] * here), 4, meshes) for here in range(1, 5)]
    wanted = [None, (2, "data:2;model:2"), (3, "data:3;model:2"), (4, "data:4;model:2")]
    assert found == wanted


@pytest.mark.parametrize("text", ["data", "data:0", "data:3", "data:4|data:3;b:x", "data:8|data:3"])
def test_wrong_meshes_are_refused(text):
    with pytest.raises(ValueError, match="--meshes"):
        parse_meshes(text, 4)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_processes_of_a_host_are_neighbours_and_hosts_share_evenly(numbers, data):
    there = offers(*numbers)
    count = data.draw(st.integers(1, sum(numbers)))
    hosts, addresses = place(there, count)
    assert len(hosts) == len(addresses) == len(set(addresses)) == count
    assert list(hosts) == sorted(hosts)
    assert all(
        address in there[host].addresses for host, address in zip(hosts, addresses, strict=True)
    )
    each = [hosts.count(host) for host in there]
    free = [n for n, used in zip(numbers, each, strict=True) if used < n]
    assert not free or max(each) - min(u for u, n in zip(each, numbers, strict=True) if u < n) <= 1


def test_a_plan_survives_json():
    plan = Plan(3, 1, (0, 0, 2), ("a:1", "a:2", "c:1"), "data:3", 2, ((5, "1 boom"),))
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.processes_of(0) == [0, 1] and plan.members == (0, 2)
