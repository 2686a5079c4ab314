"""The decoder decodes lists of rows (batches, lengths, ends) by programs of few lengths."""

import itertools
import random

import numpy as np
import pytest

import t2tp
from t2tp.decoding import DecodeOptions, Decoder, Request, decode
from t2tp.decoding.decoder import ProgramShapes, round_up
from t2tp.decoding.prompt_batch import row_features, row_keys
from t2tp.hparam import HParams
from tests.decoding.table_model import EOS, LOGITS, TableModel

GREEDY = DecodeOptions(beam_size=1, extra_length=5, batch_size=3)


def always_ending_after(steps: int) -> np.ndarray:
    """Returns logits of a model that writes the token 2 `steps` times and then ends."""
    logits = np.full(LOGITS.shape, -9.0, np.float32)
    logits[:, :, 2] = 0.0
    if steps == 2:
        logits[2, 2, EOS] = 9.0
    return logits


@pytest.mark.parametrize("options", [DecodeOptions(beam_size=1), DecodeOptions(beam_size=2)])
@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("x:2", "batch:x")])
def test_the_loop_ends_when_all_rows_have_ended(options, mesh_shape, layout):
    model = TableModel(always_ending_after(2))
    program = t2tp.Program(
        lambda mesh, features: decode(model, mesh, features, options),
        row_features(batch=2, length=50, prefix_length=1),
        layout=t2tp.Layout(mesh_shape, layout),
    )
    fed = {name: np.zeros(f.shape.to_integer_list) for name, f in program._features.items()}
    fed["limits"] = np.array([50, 50])
    outputs = program(fed)
    assert outputs["steps"] <= 4
    np.testing.assert_array_equal(outputs["sizes"][:, 0], [2, 2])
    fed["limits"] = np.array([0, 1])  # an unused row, and a row of at most one token
    outputs = program(fed)
    assert outputs["steps"] == 1
    # Beam search prefers a sequence that ends at once to one without an end.
    np.testing.assert_array_equal(outputs["sizes"][:, 0], [0, 1 if options.width == 1 else 0])


def test_rows_come_back_in_their_order():
    decoder = Decoder.from_model(TableModel(), GREEDY)
    requests = [Request([2] * size) for size in (9, 1, 30, 4, 0, 17, 2)]
    together = decoder(requests)
    assert together == [decoder([request])[0] for request in requests]
    assert len({tuple(row[0].tokens) for row in together}) > 1


def test_rows_are_kept_to_the_length_of_the_model():
    model = TableModel(always_ending_after(0))
    model.hparams = HParams(max_length=6)
    decoder = Decoder.from_model(model, GREEDY)
    found = decoder([Request([2] * size) for size in (0, 4, 6)])
    assert [len(row[0].tokens) for row in found] == [5, 2, 0]
    with pytest.raises(ValueError, match="row 1: .*7 tokens.*context_length is 6"):
        decoder([Request(), Request([2] * 7)])


def test_rows_with_and_without_inputs_are_not_mixed():
    decoder = Decoder.from_model(TableModel(), GREEDY)
    with pytest.raises(ValueError, match="some rows have inputs"):
        decoder([Request(), Request(inputs=[2])])


def test_lengths_are_few_and_not_much_too_long():
    rounded = [round_up(size) for size in range(1, 1000)]
    assert len(set(rounded)) < 18
    assert all(size <= up <= max(8, 1.5 * size) for size, up in enumerate(rounded, start=1))


def test_keys_of_rows_differ():
    keys = [row_keys(seed, np.arange(1000)) for seed in range(3)]
    assert len(set(np.concatenate(keys).tolist())) == 3000


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_of_lengths_costs_less(seed):
    draw = random.Random(seed)
    traced = {(each,) for each in (8, 16, 64) if draw.random() < 0.3}
    lengths = [(draw.choice([8, 16, 32, 64]),) for _ in range(draw.randint(1, 12))]
    shapes = ProgramShapes(rows=4, tracing_tokens=500)
    shapes._traced = set(traced)

    def cost(padded: dict[tuple, tuple]) -> int:
        programs = {padded[each] for each in lengths} - traced
        return 4 * sum(sum(padded[each]) for each in lengths) + 500 * len(programs)

    sizes = sorted(set(lengths))
    choices = [
        dict(zip(sizes, chosen, strict=True))
        for chosen in itertools.product({*sizes, *traced}, repeat=len(sizes))
        if all(long >= short for long, short in zip(chosen, sizes, strict=True))
    ]
    assert cost(shapes._padded(lengths)) == min(map(cost, choices))


def test_pairs_of_lengths_share_a_program_that_is_long_enough_for_each():
    shapes = ProgramShapes(rows=1, tracing_tokens=500)
    assert set(shapes._padded([(8, 48), (16, 32), (900, 950)]).values()) == {(16, 48), (900, 950)}
    assert shapes._padded([(12, 40)]) == {(12, 40): (16, 48)}
    assert shapes._padded([(20, 40)] * 2) == {(20, 40): (20, 40)}
    assert shapes._padded([(12, 40)]) == {(12, 40): (20, 40)}
    assert ProgramShapes(1, 0)._padded([(8, 48), (16, 32)]) == {
        (8, 48): (8, 48),
        (16, 32): (16, 32),
    }
