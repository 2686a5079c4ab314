"""Which error is raised if processors fail together."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from t2tp.mesh.layout import Layout
from t2tp.program.executor import Executor


@pytest.mark.parametrize("reason", ["started", "{{node CollectiveReduceV2}} aborted"])
def test_a_processor_that_others_cancelled_asks_what_they_reported(reason):
    reports = []
    coordination = SimpleNamespace(
        report=lambda kind, what: reports.append(kind),
        explain=lambda: "Process 1 of 2 failed",
        missing=RuntimeError,
    )
    # With two processors here, the executor could abort the collectives of all later tests.
    cluster = SimpleNamespace(
        local_pnums=[0],
        time_limit=60,
        coordination=coordination,
        process_allgather=lambda name, value: [value],
    )

    def call(pnum):
        raise tf.errors.CancelledError(None, None, f"Function was cancelled before it was {reason}")

    with pytest.raises(RuntimeError, match="Process 1"):
        Executor(Layout("data:2", ""), cluster)(call, [])
    assert reports == ["waited"]
