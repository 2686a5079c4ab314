"""Elements of a microbatch's tensors get their numbers in the whole batch's tensors."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.lowering.microbatch import Microbatch, elements_per_row

# Shapes for b rows; each is a reshape of the shape before it.
RESHAPES = {
    "none": ["batch:{b} length:4 d:2"],
    "renamed": ["batch:{b} length:4 d:2", "expert_groups:{b} length:4 d:2"],
    "groups of a row": ["batch:{b} length:4 d:2", "batch:{b} groups:2 group:2 d:2"],
    "groups in one dimension": ["batch:{b} length:4 d:2", "batch:{4b} group:2"],
    "rows of length": ["batch:{b} length:4 d:2", "tokens:{4b} d:2", "batch:{b} of_a_row:8"],
    "behind heads": ["heads:3 batch:{b} d:2", "heads_and_batch:{3b} d:2"],
    "between": ["heads:3 batch:{b} d:2", "all:{6b}", "a:3 expert_groups:{b} e:2"],
    "cut in two": ["batch:{b} d:2", "outer:{b/2} inner:2 d:2", "tokens:{2b}"],
    "groups of two rows": ["batch:{b} length:4 d:3", "batch:{b/2} group:8 d:3"],
    "groups of two rows, renamed": [
        "batch:{b} length:4 d:3",
        "batch:{b/2} group:8 d:3",
        "expert_groups:{b/2} experts:2 capacity:4 d:3",
    ],
    "dimensions of one": ["one:1 batch:{b} length:4", "one:1 expert_groups:{b} experts:4"],
}
CUTS = [(1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (2, 4)]  # microbatches, processors
BATCH = 8
FOUR = mtf.Dimension("batch", 4)


def shape_of(text, rows):
    """Parses a shape: `{b}` is the number of rows, `{4b}` and `{b/2}` are multiples of it."""
    dims = []
    for part in text.split():
        name, size = part.split(":")
        factor = Fraction(1)
        if "{" in size:
            times, over = size.strip("{}").split("b")
            factor = Fraction(rows * int(times or 1), int(over[1:] or 1))
        dims.append(mtf.Dimension(name, int(factor) if "{" in size else int(size)))
    return mtf.Shape(dims)


def operations_between(shapes):
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    x = mtf.zeros(mesh, shapes[0])
    for shape in shapes[1:]:
        x = mtf.reshape(x, shape)
    return mesh.graph.operations


def rows_of_microbatch(number, count, processors):
    each = BATCH // processors
    part = each // count
    return [p * each + number * part + row for p in range(processors) for row in range(part)]


@pytest.mark.parametrize("name", RESHAPES)
@pytest.mark.parametrize(("count", "processors"), CUTS)
def test_elements_have_the_numbers_that_they_have_in_the_whole_batch(name, count, processors):
    rows = BATCH // count
    if "two" in name and rows // processors % 2:
        pytest.skip("two rows of one processor are of two microbatches")
    shapes = [shape_of(text, rows) for text in RESHAPES[name]]
    first = shape_of(RESHAPES[name][0], BATCH)
    batch = next(dim for dim in shapes[0].dims if dim.name == "batch")
    per_row = elements_per_row(batch, operations_between(shapes))
    numbers = np.arange(first.size).reshape(first.to_integer_list)
    for number, shape in itertools.product(range(count), shapes):
        microbatch = Microbatch(tf.constant(number), count, rows // processors, per_row)
        along = [microbatch.whole_index(d, tf.range(d.size)).numpy() for d in shape.dims]
        sizes = [microbatch.whole_size(d) for d in shape.dims]
        mine = np.take(
            numbers, rows_of_microbatch(number, count, processors), shapes[0].dims.index(batch)
        )
        np.testing.assert_array_equal(
            np.ravel_multi_index(np.ix_(*along), sizes), mine.reshape(shape.to_integer_list)
        )


def test_a_random_tensor_is_known_by_what_it_is_reshaped_to():
    assert mtf.Dimension("rows", 4) in per_row_after("rows:4 length:2", "batch:4 length:2")


def test_batches_that_are_joined_count_rows():
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    x = mtf.zeros(mesh, shape_of("batch:4 d:2", 4))
    y = mtf.reshape(mtf.concat([x, x], "batch"), shape_of("pairs:8 d:2", 8))
    found = elements_per_row(FOUR, mesh.graph.operations)
    assert found[y.shape.dims[0]] == {1}


def per_row_after(old, new):
    return elements_per_row(FOUR, operations_between([shape_of(old, 4), shape_of(new, 4)]))


def test_other_dimensions_are_left_alone():
    assert per_row_after("batch:4 length:4 d:2", "batch:4 a:2 b:2 d:2") == {FOUR: {1}}


def test_groups_of_rows_of_several_processors_are_told_apart_by_microbatch():
    per_row = per_row_after("batch:4 d:2", "groups:2 group:4")
    groups = mtf.Dimension("groups", 2)
    indices = [
        Microbatch(tf.constant(number), 2, 1, per_row).whole_index(groups, tf.range(2)).numpy()
        for number in range(2)
    ]
    assert sorted(np.ravel(indices)) == [0, 1, 2, 3]


def test_a_dimension_that_counts_rows_in_two_ways_is_refused():
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    x = mtf.zeros(mesh, shape_of("batch:4 d:2", 4))
    mtf.reshape(x, shape_of("rows:4 d:2", 4))
    mtf.reshape(mtf.slice(x, 0, 2, "batch"), shape_of("rows:4", 2))
    per_row = elements_per_row(FOUR, mesh.graph.operations)
    microbatch = Microbatch(tf.constant(0), 2, 4, per_row)
    with pytest.raises(
        ValueError, match="'rows', size=4.*[0-9/]+ and [0-9/]+ elements per row.*another name"
    ):
        microbatch.whole_index(mtf.Dimension("rows", 4), tf.range(4))
