"""The memory that a pipeline's processes need matches the activations that its schedule saves."""

import pytest

from t2tp.pipeline.schedules import make_schedule
from tests.pipeline.pipeline_memory import MICROBATCHES, STAGES
from tests.warm_processes import printed


@pytest.mark.slow
def test_activations_are_alive_as_long_as_the_tables_say(tmp_path):
    names = ["gpipe", "1f1b"]
    lines = printed(
        "tests.pipeline.pipeline_memory:main",
        [[name] for name in names],
        [{}, {}],
        tmp_path / "said",
    )
    (all_first, kept), (one_by_one, _) = (map(int, line.split()) for line in lines)
    alive = [sum(make_schedule(name, STAGES, MICROBATCHES).alive()) for name in names]
    assert alive == [STAGES * MICROBATCHES, 4 + 3 + 2 + 1]
    # All other memory of a step is the same with both schedules.
    assert all_first - one_by_one == pytest.approx((alive[0] - alive[1]) * kept, rel=0.25)
