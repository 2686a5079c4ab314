"""What the leader decides, with hosts that are not there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2tp.trainer.processes.crashes import Outcome
from t2tp.trainer.processes.leader import (
    EXIT,
    KILL,
    RUN,
    SAVE,
    WAIT,
    Leader,
    Order,
    Policy,
    Report,
)

POLICY = Policy(num_hosts=4, num_processes=4, max_restarts=3, host_timeout=10.0)


class Hosts:
    """Hosts that obey at once, and a clock."""

    def __init__(self, policy: Policy = POLICY, plan=None, leader: int = 0) -> None:
        self.now = 1000.0
        self.leader = Leader(leader, policy, self.now, plan)
        self.reports = {
            host: Report(host, (f"h{host}:1",), launcher_id="a") for host in range(policy.num_hosts)
        }
        self.orders: dict[int, Order] = {}
        self.starts: list[tuple[int, int]] = []  # Host and round.

    def pass_time(self, seconds: float) -> None:
        """All hosts report once a second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for host in list(self.reports):
                order = self.leader.report(self.reports[host], self.now)
                self.orders[host] = order
                self.obey(host, order)

    def obey(self, host: int, order: Order) -> None:
        report = self.reports[host]
        if order.what == RUN and order.plan.number > report.round:
            self.starts.append((host, order.plan.number))
            self.reports[host] = replace(
                report, round=order.plan.number, is_running=True, outcome=None
            )
        elif report.is_running and order.what == SAVE:
            self.end(host, Outcome(143))
        elif report.is_running and order.what in (WAIT, KILL):
            self.end(host, None)

    def end(self, host: int, outcome: Outcome | None) -> None:
        self.reports[host] = replace(self.reports[host], is_running=False, outcome=outcome)

    def let_go(self) -> None:
        """The launchers that are to exit have done so."""
        for leaver in [host for host in self.reports if self.orders[host].what == EXIT]:
            self.reports.pop(leaver)

    def what(self) -> dict[int, str]:
        return {host: order.what for host, order in self.orders.items() if host in self.reports}

    def notices(self) -> str:
        return " ".join(text for _, text in self.leader._order_for(self.reports[0]).notices)


def test_the_first_round_waits_for_all_hosts():
    hosts = Hosts()
    late = hosts.reports.pop(3)
    hosts.pass_time(100)
    assert set(hosts.what().values()) == {WAIT}
    hosts.reports[3] = late
    hosts.pass_time(3)
    assert hosts.what() == dict.fromkeys(range(4), RUN)
    assert hosts.leader.plan.hosts == (0, 1, 2, 3)


def test_a_host_that_never_comes_ends_the_run():
    hosts = Hosts()
    hosts.reports.pop(3)
    hosts.pass_time(305)
    assert {order.code for order in hosts.orders.values()} == {3}
    assert "number 3 did not come" in hosts.notices()


def test_without_a_host_the_run_goes_on_with_half_the_processes_and_grows_again():
    hosts = Hosts()
    hosts.pass_time(3)
    lost = hosts.reports.pop(2)
    hosts.pass_time(15)
    plan = hosts.leader.plan
    assert (plan.number, plan.hosts, plan.restarts) == (2, (0, 1), 1)
    assert hosts.what() == {0: RUN, 1: RUN, 3: WAIT}
    hosts.reports[2] = replace(lost, round=0, is_running=False, launcher_id="b")
    hosts.pass_time(30)
    plan = hosts.leader.plan
    assert (plan.number, plan.hosts, plan.restarts) == (3, (0, 1, 2, 3), 1)


def test_a_launcher_that_was_started_again_is_a_lost_host():
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.reports[1] = Report(1, ("h1:2",), launcher_id="b")
    hosts.pass_time(4)
    assert hosts.leader.plan.number == 2 and "host 1 is lost" in hosts.notices()
    assert hosts.what() == dict.fromkeys(range(4), RUN)


def test_a_launcher_that_has_ended_is_lost_at_once():
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.reports.pop(2)
    hosts.pass_time(3)
    assert hosts.leader.silent(2.0) == [2]
    hosts.leader.has_ended(2, asked=hosts.now - 4)  # It has reported since.
    hosts.pass_time(1)
    assert hosts.leader.plan.restarts == 0
    hosts.leader.has_ended(2, asked=hosts.now)
    hosts.pass_time(3)
    assert (hosts.leader.plan.number, hosts.leader.plan.hosts) == (2, (0, 1))
    assert "host 2 is lost" in hosts.notices()


@pytest.mark.parametrize("ended", [set(), {0}])
def test_a_leader_known_to_have_ended_is_not_waited_for(ended):
    """Of a run of two hosts; if the first may only be cut off, the other one lets it go first."""
    hosts = Hosts(replace(POLICY, num_hosts=2, num_processes=2))
    hosts.pass_time(3)
    left = Hosts(hosts.leader.policy, hosts.leader.plan, leader=1)
    left.leader.ended |= ended
    left.reports.pop(0)
    left.pass_time(8)
    assert left.leader.is_running == bool(ended)
    left.pass_time(60)
    assert left.leader.plan.hosts == (1,)


def test_a_failure_restarts_all_and_the_count_is_kept():
    hosts = Hosts()
    hosts.pass_time(3)
    for number in range(1, 4):
        hosts.end(1, Outcome(137, 1, step=number))
        hosts.pass_time(4)
        assert hosts.leader.plan.number == number + 1
    hosts.end(1, Outcome(137, 1, step=9))
    hosts.pass_time(3)
    assert hosts.orders[0] == replace(hosts.orders[0], what=EXIT, code=137)
    assert "after 3 restarts" in hosts.notices()


def test_the_same_error_at_the_same_step_ends_the_run():
    hosts = Hosts()
    hosts.pass_time(3)
    for _ in range(3):
        hosts.end(1, Outcome(1, 1, 17, f"ValueError: at 0x{id(object()):x}"))
        hosts.pass_time(4)
    assert hosts.what() == dict.fromkeys(range(4), EXIT) and "a crash loop" in hosts.notices()


def test_a_wrong_request_is_not_tried_again():
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.end(1, Outcome(2, 1, 0, "t2tp_trainer: no such model"))
    hosts.pass_time(2)
    assert {(each.what, each.code) for each in hosts.orders.values()} == {(EXIT, 2)}


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_to_one_host(number):
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.reports[3] = replace(hosts.reports[3], leaves=number)
    hosts.pass_time(4)
    if number == 2:  # Ctrl-C ends the run.
        assert {(each.what, each.code) for each in hosts.orders.values()} == {(EXIT, 130)}
    else:  # The host leaves, and the others go on, as long as its last report counts and after.
        assert hosts.orders[3].what == EXIT and hosts.orders[3].code == 143
        hosts.reports.pop(3)
        for _ in range(30):
            hosts.pass_time(1)
            plan = hosts.leader.plan
            assert (plan.number, plan.hosts, plan.restarts) == (2, (0, 1), 0)
            assert hosts.what() == {0: RUN, 1: RUN, 2: WAIT}


def test_processes_that_miss_one_of_a_host_that_leaves_have_not_failed():
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.reports[3] = replace(hosts.reports[3], leaves=15)
    hosts.leader._seen[3] = (hosts.reports[3], hosts.now)  # Known before the leader looks again.
    hosts.end(0, Outcome(3))
    hosts.pass_time(3)
    assert hosts.orders[3].code == 143 and hosts.leader.plan.restarts == 0


def test_a_spare_leaves_and_the_round_goes_on():
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.reports.pop(3)
    hosts.pass_time(15)
    hosts.reports[2] = replace(hosts.reports[2], leaves=15)
    hosts.pass_time(2)
    assert hosts.what() == {0: RUN, 1: RUN, 2: EXIT}
    assert hosts.leader.plan.number == 2


def test_a_leader_that_leaves_gives_the_run_to_the_next():
    """It tells the others before it ends; nothing counts as lost, and nobody waits for it."""
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.reports[0] = replace(hosts.reports[0], leaves=15)
    hosts.pass_time(3)
    assert hosts.what() == {0: EXIT, 1: WAIT, 2: WAIT, 3: WAIT}
    assert hosts.orders[0].code == 143 and hosts.leader.is_over
    after = Hosts(plan=hosts.orders[1].plan, leader=1)
    after.leader.ended.add(0)
    after.reports = {h: replace(after.reports[h], round=1) for h in (1, 2, 3)}
    after.pass_time(3)
    plan = after.leader.plan
    assert (plan.number, plan.hosts, plan.restarts, plan.leader) == (2, (1, 2), 0, 1)


def test_a_signal_to_all_hosts_ends_the_run():
    hosts = Hosts()
    hosts.pass_time(3)
    for host in hosts.reports:
        hosts.reports[host] = replace(hosts.reports[host], leaves=15)
    hosts.pass_time(4)
    assert {(each.what, each.code) for each in hosts.orders.values()} == {(EXIT, 143)}
    assert hosts.leader.is_over


def test_processes_that_were_signalled_themselves_end_the_run():
    hosts = Hosts()
    hosts.pass_time(3)
    for host in hosts.reports:
        hosts.end(host, Outcome(143))
    hosts.pass_time(2)
    assert {(each.what, each.code) for each in hosts.orders.values()} == {(EXIT, 143)}


def test_the_end_of_the_training_is_the_end():
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.end(0, Outcome(0))
    hosts.pass_time(20)
    assert hosts.leader.is_running
    for host in (1, 2, 3):
        hosts.end(host, Outcome(0))
    hosts.pass_time(2)
    assert {(each.what, each.code) for each in hosts.orders.values()} == {(EXIT, 0)}


def test_the_smaller_part_of_a_divided_run_lets_the_larger_go_first():
    hosts = Hosts()
    hosts.pass_time(3)
    plan = hosts.leader.plan
    begun = {}
    for here in ({0, 1}, {2, 3}, {1, 2, 3}, {3}):
        part = Hosts(plan=plan, leader=min(here))
        part.reports = {host: part.reports[host] for host in here}
        while not part.leader.is_running:
            part.pass_time(1)
        begun[frozenset(here)] = part.now - 1000.0
    assert begun[frozenset({0, 1})] + 20 < begun[frozenset({2, 3})]
    assert begun[frozenset({1, 2, 3})] + 20 < begun[frozenset({3})]


def test_a_new_leader_goes_on_counting():
    hosts = Hosts()
    hosts.pass_time(3)
    hosts.end(1, Outcome(137, 1, step=1))
    hosts.pass_time(4)
    after = Hosts(plan=hosts.leader.plan, leader=1)
    after.reports.pop(0)
    after.reports = {h: replace(r, round=2) for h, r in after.reports.items()}
    after.pass_time(40)
    plan = after.leader.plan
    assert (plan.number, plan.restarts, plan.hosts, plan.leader) == (3, 2, (1, 2), 1)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["die", "back", "crash", "term"]), st.integers(0, 3), st.integers(1, 40)
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_whatever_happens_a_round_has_one_mesh_and_starts_once_on_each_host(events):
    """Hosts die, leave, come back and crash at any time; in the end those that are there train."""
    hosts = Hosts(replace(POLICY, max_restarts=1000))
    hosts.pass_time(3)
    for what, host, seconds in events:
        report = hosts.reports.get(host)
        if what == "die" and host:  # The leader lives, see test_group.
            hosts.reports.pop(host, None)
        elif what == "back" and report is None:
            hosts.reports[host] = Report(host, (f"h{host}:9",), launcher_id=str(hosts.now))
        elif what == "crash" and report is not None and report.is_running:
            hosts.end(host, Outcome(137, host, step=int(hosts.now)))
        elif what == "term" and report is not None and host:
            hosts.reports[host] = replace(report, leaves=15)
        hosts.pass_time(seconds)
        hosts.let_go()
    hosts.pass_time(60)
    hosts.let_go()
    hosts.pass_time(60)
    plan = hosts.leader.plan
    running = [h for h, r in hosts.reports.items() if r.is_running and r.round == plan.number]
    assert tuple(sorted(running)) == plan.members
    assert len(running) == {1: 1, 2: 2, 3: 2, 4: 4}[len(hosts.reports)]
    assert len(hosts.starts) == len(set(hosts.starts))


def test_reports_and_orders_survive_json():
    report = Report(1, ("a:1",), True, 3, False, Outcome(1, 2, 3, "e"), 15, "w")
    assert Report.from_json(report.to_json()) == report
    hosts = Hosts()
    hosts.pass_time(3)
    order = replace(hosts.orders[0], notices=(("k", "said"),))
    assert Order.from_json(order.to_json()) == order
