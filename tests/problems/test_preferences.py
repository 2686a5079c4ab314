"""Preference data: every form of a record, packing, limits, and data that are refused."""

import numpy as np
import pytest

from t2tp.problems.data.batch_stream import EMPTY
from tests.huggingface.tiny_files import END, write_tokenizer
from tests.problems.decoded import all_decoded
from tests.problems.test_instructions import prepared_records, with_template

pytest.importorskip("jinja2", reason="pip install -e '.[text]'")

USER = {"role": "user", "content": "the fox?"}
CHOSEN = {"role": "assistant", "content": "quick"}
REJECTED = {"role": "assistant", "content": "lazy dog"}
EARLIER = [{"role": "user", "content": "jumps?"}, {"role": "assistant", "content": "over"}]
TEXTS = {"prompt": "the fox", "chosen": " is quick", "rejected": " is lazy"}
CHAT = {"prompt": [USER], "chosen": [CHOSEN], "rejected": [REJECTED]}
# Records of the same pair in several forms.
FORMS = {
    "texts": [TEXTS, {"chosen": "the fox is quick", "rejected": "the fox is lazy"}],
    "chats": [
        CHAT,
        {"chosen": [USER, CHOSEN], "rejected": [USER, REJECTED]},
        {
            "conversations": [{"from": "human", "value": "the fox?"}],
            "chosen": {"from": "gpt", "value": "quick"},
            "rejected": {"from": "gpt", "value": "lazy dog"},
        },
    ],
}
# Their prompt and replies as they are stored.
STORED = {
    "texts": [
        ("the fox is", " quick", " lazy"),  # Without a prompt, all that is common is the prompt.
        ("the fox", " is quick", " is lazy"),
    ],
    "chats": [("[user] the fox?\n[assistant]", " quick", " lazy dog")],
}


def prepared(tmp_path, records, **options):
    tokenizer = tmp_path / "tokenizer"
    if not tokenizer.exists():
        tokenizer.mkdir()
        write_tokenizer(tokenizer)
    return prepared_records("preferences", tmp_path, records, with_template(tokenizer), **options)


def decoded(problem, data_dir):
    """Returns prompt, chosen and rejected of all stored examples, without end tokens."""
    samples = all_decoded(problem, data_dir)
    return {tuple(pair[name].replace(END, "") for name in TEXTS) for pair in samples}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_record_gives_the_same_pair(tmp_path, form):
    problem = prepared(tmp_path, FORMS[form] * 20)
    assert decoded(problem, tmp_path / "data") == set(STORED[form])


def test_replies_in_the_prompt_are_read_and_not_learned(tmp_path):
    problem = prepared(tmp_path, [{**CHAT, "prompt": [*EARLIER, USER]}] * 40)
    ((prompt, chosen, rejected),) = decoded(problem, tmp_path / "data")
    assert "over" in prompt
    assert (chosen, rejected) == (" quick", " lazy dog")


def test_long_prompts_lose_their_beginning_and_long_replies_their_end(tmp_path):
    record = {"prompt": "the quick fox", "chosen": " jumps over", "rejected": " dog dog dog"}
    problem = prepared(tmp_path, [record] * 40, max_prompt=1, max_reply=2)
    ((prompt, chosen, rejected),) = decoded(problem, tmp_path / "data")
    assert "the quick fox".endswith(prompt)
    assert len(prompt) < len("the quick fox")
    assert " jumps over".startswith(chosen)
    assert rejected == " dog dog"


def random_record(draw, form):
    """Returns a pair of random lengths."""
    texts = {
        name: word * draw.integers(1, 6)
        for name, word in zip(TEXTS, ("the", " fox", " dog"), strict=True)
    }
    if form == "texts":
        return texts
    roles = dict(zip(TEXTS, ("user", "assistant", "assistant"), strict=True))
    return {name: [{"role": roles[name], "content": texts[name]}] for name in TEXTS}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arrangement", ["packed", "padded"])
def test_a_row_has_both_replies_of_each_of_its_pairs(tmp_path, arrangement, form):
    draw = np.random.default_rng(0)
    records = [random_record(draw, form) for _ in range(60)]
    problem = prepared(tmp_path, records, arrangement=arrangement)
    end = problem.vocabulary(tmp_path / "data").end_of_document
    source = problem.train_examples(tmp_path / "data", 64)
    problem.set_references("train", arrangement == "packed", {})
    rows = np.array([*range(len(source)), EMPTY])
    whole = (slice(None),)
    read = {name: source.read(name, rows, whole) for name in source.features}
    (pairs,) = source.shape("reference_chosen")
    assert read["targets_segmentation"].max() == 2 * pairs
    assert (pairs > 1) == (arrangement == "packed")
    for row in range(len(rows)):
        segments = read["targets_segmentation"][row]
        assert segments.max() % 2 == 0
        for number in range(1, segments.max() + 1):
            (places,) = np.nonzero(segments == number)
            size = len(places)
            assert places.tolist() == list(range(places[0], places[0] + size))
            assert read["targets_position"][row, places].tolist() == list(range(size))
            weights = read["targets_weights"][row, places]
            assert 0 < weights.sum() < size  # A prompt and a reply,
            assert (np.diff(weights) >= 0).all()  # in this order, and
            assert read["targets"][row, places[-1]] == end  # the learned token of the end.


REFUSED = [
    ({**TEXTS, "rejected": TEXTS["chosen"]}, "the same"),
    ({"prompt": "a", "chosen": "b"}, "'rejected' is missing"),
    ({**TEXTS, "prompt": [USER]}, "must be a text"),
    ({**CHAT, "chosen": [USER]}, "no text of the role 'assistant'"),
]


@pytest.mark.parametrize(("record", "message"), REFUSED)
def test_a_record_without_a_pair_is_refused(tmp_path, record, message):
    with pytest.raises(ValueError, match=f"line 1: .*{message}"):
        prepared(tmp_path, [record, *[TEXTS] * 40])
