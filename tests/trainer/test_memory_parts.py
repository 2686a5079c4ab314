"""Which parts of checkpoints in memory are kept, and which are restored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from t2tp.trainer.memory_parts import (
    Part,
    choose_parts,
    needed,
    parts_directory,
    parts_in,
    prune,
    read_choice,
    write_choice,
)


def test_names_say_what_a_part_is():
    part = Part(3, 120, 2, 4, 8)
    assert Part.parse(part.name) == part
    assert Part.parse(part.name + ".tmp-5") is None and Part.parse("../" + part.name) is None


@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(0, 3), st.integers(0, 2)),
        max_size=30,
    )
)
def test_the_latest_step_of_which_all_parts_are_there_is_restored(saved):
    """Rounds save on 4 processors, one or two a part; hosts have some of the parts."""
    there: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}
    for number, step, first, host in saved:
        each = number  # The first round has parts of one processor, the second of two.
        begin = first - first % each
        there[host].add(Part(number, step, begin, begin + each, 4).name)
    chosen = choose_parts(there)
    found = {Part.parse(name) for names in there.values() for name in names}
    complete = [
        (step, number)
        for step in range(1, 5)
        for number in (1, 2)
        if len([p for p in found if (p.round, p.step) == (number, step)]) == 4 // number
    ]
    if not complete:
        assert chosen == ()
        return
    parts = [Part.parse(name) for name, _ in chosen]
    assert {(part.step, part.round) for part in parts} == {max(complete)}
    assert [p for part in parts for p in range(part.first, part.end)] == [0, 1, 2, 3]
    assert all(name in there[host] for name, host in chosen)


def test_a_process_needs_the_parts_of_its_processors():
    names = [Part(1, 5, first, first + 2, 8).name for first in (0, 2, 4, 6)]
    assert needed(names, 1, 2) == names[2:]
    assert needed(names, 1, 4) == names[1:2]
    assert needed(names, 3, 8) == names[1:2]


def test_the_latest_steps_are_kept(tmp_path):
    for number, step in [(1, 10), (1, 20), (1, 30), (2, 20), (2, 30)]:
        for first in (0, 1):
            (parts_directory(tmp_path) / Part(number, step, first, first + 1, 2).name).touch()
    prune(tmp_path)
    kept = {(part.round, part.step) for part in parts_in(tmp_path)}
    assert kept == {(1, 30), (2, 20), (2, 30)} and len(parts_in(tmp_path)) == 6


def test_the_choice_is_passed_on(tmp_path):
    assert read_choice(tmp_path) == []
    write_choice(tmp_path, ["a", "b"])
    assert read_choice(tmp_path) == ["a", "b"]
