"""In a pipeline's table, each microbatch passes each stage once forward and once backward."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2tp import registry
from t2tp.pipeline.messages import assign_slots
from t2tp.pipeline.schedule import Action, Schedule, ScheduleError, TickWork
from t2tp.pipeline.schedules import forward_schedule, make_schedule
from tests.pipeline.pipeline_memory import MICROBATCHES, STAGES
from tests.warm_processes import printed

PIPELINE_SCHEDULES = registry.list_pipeline_schedules()
SIZES = st.tuples(st.integers(2, 6), st.integers(1, 12), st.integers(1, 3))


@given(st.sampled_from(PIPELINE_SCHEDULES), SIZES)
def test_every_schedule_passes_its_check(name, sizes):
    make_schedule(name, *sizes).check()


@given(SIZES)
def test_an_evaluation_has_forward_passes_only(sizes):
    schedule = forward_schedule(*sizes)
    schedule.check()
    assert {entry.action for _, _, entry in schedule.entries()} == {Action.FORWARD}


@given(st.integers(2, 6), st.integers(1, 4))
def test_bubbles_are_those_of_the_papers(stages, groups):
    microbatches, idle = groups * stages, stages - 1
    passed = idle / (microbatches + idle)
    assert make_schedule("gpipe", stages, microbatches).bubble() == pytest.approx(passed)
    assert make_schedule("1f1b", stages, microbatches).bubble() == pytest.approx(passed)
    # Narayanan et al., section 2.2: v chunks divide the bubble by v.
    interleaved = make_schedule("interleaved", stages, microbatches, 2).bubble()
    assert interleaved == pytest.approx(idle / 2 / (microbatches + idle / 2))
    # Qi et al., table 1: the bubble of ZB-H1 is (stages - 1) (F + B - W), here a third of 1F1B's.
    zero_bubble = make_schedule("zero_bubble", stages, 2 * microbatches).bubble()
    assert zero_bubble == pytest.approx(idle / (3 * 2 * microbatches + idle))


@given(st.integers(2, 6), st.integers(6, 12))
def test_one_forward_one_backward_keeps_as_many_microbatches_as_stages(stages, microbatches):
    assert make_schedule("gpipe", stages, microbatches).alive() == [microbatches] * stages
    alive = make_schedule("1f1b", stages, microbatches).alive()
    assert alive == list(range(stages, 0, -1))
    assert max(make_schedule("zero_bubble", stages, microbatches).alive()) == stages


@given(st.sampled_from(PIPELINE_SCHEDULES), SIZES)
def test_slots_in_use_are_never_given_out_again(name, sizes):
    schedule = make_schedule(name, *sizes)
    slots = assign_slots(schedule, [0] * schedule.chunks)
    at = schedule.ticks_of()
    last = Action.WEIGHTS if schedule.splits_backward else Action.BACKWARD
    held: dict[tuple, set[int]] = {}
    for (stage, microbatch, chunk), slot in slots.saved.items():
        assert slot < slots.num_saved[chunk]
        first = TickWork(Action.FORWARD, microbatch, chunk)
        ticks = set(range(at[stage, first], at[stage, first._replace(action=last)]))
        assert not ticks & held.setdefault((stage, chunk, slot), set())
        held[stage, chunk, slot] |= ticks
    for (stage, entry), slot in slots.arrived.items():
        sent = at[schedule.requirement(stage, entry)]
        ticks = set(range(sent, at[stage, entry]))
        assert not ticks & held.setdefault((stage, entry.action, slot), set())
        held[stage, entry.action, slot] |= ticks


def test_as_many_slots_as_activations_alive():
    for name in PIPELINE_SCHEDULES:
        schedule = make_schedule(name, 4, 16)
        assert assign_slots(schedule, [0]).num_saved == {0: max(schedule.alive())}


def without(schedule: Schedule, *gone: tuple[int, TickWork]) -> Schedule:
    table = tuple(
        tuple(None if (stage, entry) in gone else entry for stage, entry in enumerate(row))
        for row in schedule.table
    )
    return dataclasses.replace(schedule, table=table)


BROKEN = {
    "stage 0 never has B2": lambda s: without(s, (0, TickWork(Action.BACKWARD, 2))),
    "before F0 of stage 0, which it needs": lambda s: dataclasses.replace(s, table=s.table[1:]),
    "there are 3 microbatches": lambda s: dataclasses.replace(s, microbatches=3),
    "and had it at tick": lambda s: dataclasses.replace(s, table=(*s.table, s.table[-1])),
    "stage 1 has F0 at tick 0, the tick at which": lambda s: dataclasses.replace(
        s, table=((TickWork(Action.FORWARD, 0), TickWork(Action.FORWARD, 0)), *s.table[2:])
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_is_no_schedule_is_refused(message):
    with pytest.raises(ScheduleError, match=message):
        BROKEN[message](make_schedule("1f1b", 2, 4)).check()


def test_a_table_is_read_from_a_file(tmp_path):
    path = tmp_path / "mine.csv"
    for name in PIPELINE_SCHEDULES:
        wanted = make_schedule(name, 3, 5, 2)
        path.write_text(str(wanted))
        assert make_schedule(str(path), 3, 5, 2) == wanted


REFUSED = [
    ("F0,\n,F0\n,B0\nB0", "line 4 has 1 columns, and the pipeline 2 stages"),
    ("F0,\n,F0\n,X0\nB0,", "line 3: 'X0' is not an entry"),
    ("", "is empty"),
    ("F0,\n,F0\nB0,B0", "at tick 2"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_bad_files_are_refused_in_words(text, message, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=message):
        make_schedule(str(path), 2, 1)


def test_unknown_schedules_come_with_the_nearest():
    with pytest.raises(ScheduleError, match="zero_bubble"):
        make_schedule("zero-bubble", 2, 4)
    with pytest.raises(ScheduleError, match="cannot be read"):
        make_schedule("nothing_here.csv", 2, 4)


@pytest.mark.slow
def test_activations_are_alive_as_long_as_the_tables_say(tmp_path):
    names = ["gpipe", "1f1b"]
    target = "tests.pipeline.pipeline_memory:main"
    lines = printed(target, [[name] for name in names], [{}, {}], tmp_path / "said")
    (all_first, kept), (one_by_one, _) = (map(int, line.split()) for line in lines)
    alive = [sum(make_schedule(name, STAGES, MICROBATCHES).alive()) for name in names]
    assert alive == [STAGES * MICROBATCHES, 4 + 3 + 2 + 1]
    # All other memory of a step is the same with both schedules.
    assert all_first - one_by_one == pytest.approx((alive[0] - alive[1]) * kept, rel=0.25)
