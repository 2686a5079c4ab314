"""Peers take turns; a peer that cannot run is reported as absent, with the reason."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from suite import turns
from suite.turns import Peer, take_turns

LOG = """
import os, sys, time
sys.path.insert(0, {peers!r})
import turn
args = turn.arguments()
RANK = os.environ.get("RANK", "")

def step():
    with open({log!r}, "a") as log:
        log.write({name!r} + RANK + "\\n")
    return {loss}

turn.take_turns(step, version="1")
"""


@pytest.fixture
def peer(tmp_path):
    """Returns a function that makes peers of small programs, which log their steps."""

    def make(name: str, *arguments: str, loss: float = 1.0, program: str = LOG, **options) -> Peer:
        peers, log = str(turns.HERE / "peers"), str(tmp_path / "log")
        path = tmp_path / name
        path.with_suffix(".py").write_text(
            program.format(peers=peers, log=log, name=name, loss=loss)
        )
        return Peer(name, str(path), list(arguments), **options)

    return make


def logged(tmp_path: Path) -> list[str]:
    return (tmp_path / "log").read_text().split()


def test_steps_are_interleaved_after_the_warm_up(peer, tmp_path):
    timed, absent = take_turns([peer("a"), peer("b")], turns=2, steps=2)
    assert absent == {}
    assert [[len(turn) for turn in p.turns] for p in timed] == [[2, 2], [2, 2]]
    assert logged(tmp_path) == [*"aaaabbbb", *"aabbaabb"]
    assert timed[0].facts["losses"] == [1.0] * 4


def test_a_peer_that_fails_is_absent_with_its_error(peer):
    broken = peer("b", program="raise RuntimeError('no such device')")
    timed, absent = take_turns([peer("a"), broken], turns=1, steps=1)
    assert [p.name for p in timed] == ["a"]
    assert absent == {"b": "ended with code 1: RuntimeError: no such device"}


def test_a_peer_that_hangs_is_absent(peer, monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE", 0.2)
    monkeypatch.setattr(turns, "TIDYING_UP", 0.1)
    hanging = peer("a", program="import time; time.sleep(60)")
    assert take_turns([hanging], 1, 1)[1] == {"a": "said nothing for 0 seconds"}


CASES = [
    (1.00005, "float32", False),
    (1.0005, "float32", True),
    (1.0005, "bfloat16", False),
    (1.05, "bfloat16", True),
    (float("nan"), "float32", True),
]


@pytest.mark.parametrize(("loss", "dtype", "is_absent"), CASES)
def test_a_peer_with_another_first_loss_computes_something_else(peer, loss, dtype, is_absent):
    other = peer("b", f"--dtype={dtype}", loss=f"float('{loss}')")
    _, absent = take_turns([peer("a"), other], turns=1, steps=1)
    assert ("computes something else" in absent.get("b", "")) is is_absent


def test_processes_take_each_turn_together(peer, tmp_path):
    (timed,), absent = take_turns([peer("a", "--processes=3")], turns=1, steps=2)
    assert absent == {}
    assert len(timed.turns[0]) == 2
    assert sorted(logged(tmp_path)) == ["a0"] * 6 + ["a1"] * 6 + ["a2"] * 6


def test_if_one_process_fails_the_peer_does(peer):
    # The other processes wait for the failed one, as in a collective.
    fails = "assert RANK in ('', '0'), 'I am not the first'\n\ndef step():\n    time.sleep(60)"
    program = LOG.replace("def step():", fails)
    _, absent = take_turns([peer("a", "--processes=2", program=program)], turns=1, steps=1)
    assert "I am not the first" in absent["a"]


def test_the_suites_name_programs_that_exist():
    code = """
import json
from suite import suites
programs = sorted({p.program for suite in suites.SUITES.values() for size in suites.SIZES
                   for case in suite.values() for g in case(size) for p in g.peers})
print(json.dumps(programs))
"""
    listed = subprocess.run(
        [sys.executable, "-c", code], cwd=turns.HERE, capture_output=True, text=True, check=True
    )
    for program in json.loads(listed.stdout):
        assert os.path.exists(turns.HERE / "peers" / f"{program}.py"), program
