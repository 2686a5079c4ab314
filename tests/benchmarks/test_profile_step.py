"""The shares of a profile add up to the step."""

import profile_step
import pytest
from profile_step import Span, part_of, shared_out

SECOND = 10**12


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ("layer_00/attention/attention/MatMul:_MklBatchMatMulV2", "attention"),
        ("layer_00/attention/attention/gradients/attention_grad/sub:Sub", "attention"),
        ("gradient_tape/attention/MatMul:_MklBatchMatMulV2", "attention"),
        ("layer_00/attention/einsum_2/einsum/Einsum:_MklEinsum", "products of matrices"),
        ("matmul_10/MatMul:_MklBatchMatMulV2", "products of matrices"),
        ("cross_entropy/sub_1:Sub", "cross-entropy"),
        ("CpuExecutable::ExecuteAsyncOnStream", "cross-entropy"),
        ("adam_1/ResourceApplyAdam:ResourceApplyAdam", "optimizer"),
        ("layer_00/attention/rms_norm/Sum:Sum", "norms"),
        ("shift/Pad:Pad", "the rest"),
        ("layer_00/attention/add/CollectiveReduceV2:CollectiveReduceV2", "collectives"),
    ],
)
def test_what_an_operation_belongs_to(operation, part):
    assert part_of(operation) == part


def test_a_moment_is_shared_among_what_runs_then():
    spans = [
        Span(1 * SECOND, 3 * SECOND, "norms"),
        Span(2 * SECOND, 6 * SECOND, "attention"),
        Span(8 * SECOND, 20 * SECOND, "norms"),  # beyond the end of the step
    ]
    shares = shared_out(Span(0, 10 * SECOND, ""), spans)
    assert shares == {"norms": 1 + 0.5 + 2, "attention": 0.5 + 3, profile_step.BETWEEN: 1 + 2}
    assert sum(shares.values()) == 10


def test_a_collective_counts_where_nothing_else_runs():
    spans = [Span(0, 4 * SECOND, profile_step.COLLECTIVES), Span(0, 3 * SECOND, "norms")]
    shares = shared_out(Span(0, 5 * SECOND, ""), spans)
    assert shares == {"norms": 3, profile_step.COLLECTIVES: 1, profile_step.BETWEEN: 1}
