"""Instruction data: learned tokens of conversations, packing, and data that are refused."""

import itertools
import json
import pickle
from functools import partial

import numpy as np
import pytest

import t2tp.hparams  # noqa: F401 (registers sets)
from t2tp import problems, registry
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.models.model import FeatureMismatchError
from t2tp.problems.vocab.vocabulary_file import load_vocabulary
from t2tp.trainer.cli.programs import t2tp_datagen, t2tp_trainer
from t2tp.trainer.inference.conversations import read_template
from t2tp.trainer.inputs.problem_inputs import training_inputs
from t2tp.trainer.run_dir import run_files
from tests.huggingface.tiny_files import END, write_tokenizer
from tests.models.small_lm import make_batch
from tests.models.small_transformers import FAMILIES, feature_of
from tests.problems import tiny_tokenizers

pytest.importorskip("jinja2", reason="pip install -e '.[text]'")

# The template begins with BOS, which a model reads anyway, and writes a line end after a reply.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the fox?"},
    {"role": "assistant", "content": "quick"},
    {"role": "user", "content": "the dog?"},
    {"role": "assistant", "content": "lazy"},
]
CHATS = [{"messages": CHAT[:3]}, {"messages": CHAT}]
PAIRS = [{"prompt": f"the fox {n} jumps", "completion": f" over {n} dogs"} for n in range(60)]


@pytest.fixture
def tokenizer(tmp_path):
    """Writes a tokenizer without a chat template."""
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    write_tokenizer(directory)
    return directory


def with_template(tokenizer, template=TEMPLATE):
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": END, "bos_token": END, "chat_template": template})
    )
    return tokenizer


def written(tmp_path, records):
    lines = (each if isinstance(each, str) else json.dumps(each) for each in records)
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "data.jsonl"


def prepared_records(name, tmp_path, records, tokenizer, **options):
    given = {"files": written(tmp_path, records), "vocabulary_from": tokenizer, **options}
    problem = problems.find(name, ",".join(f"{k}={v}" for k, v in given.items()))
    problem.prepare(tmp_path / "data")
    return problem


prepared = partial(prepared_records, "instructions")


def stored_examples(problem, data_dir, split):
    """Yields the tokens and the weights of each stored example."""
    stored = problem.stored(data_dir, split)
    for number in range(len(stored["targets"])):
        yield [stored[name].example(number).tolist() for name in ("targets", "targets_weights")]


def learned_texts(problem, data_dir):
    """Returns the text of each stored example and its learned part, with EOS written as END."""
    vocabulary = load_vocabulary(problem.directory(data_dir))
    end = vocabulary.end_of_document

    def text(ids):
        return "".join(END if token == end else vocabulary.decode([token]) for token in ids)

    found = set()
    for split in problem.splits:
        for ids, weights in stored_examples(problem, data_dir, split):
            learned = [token for token, weight in zip(ids, weights, strict=True) if weight == 1]
            found.add((text(ids), text(learned)))
    return found


def test_replies_alone_are_learned_as_the_chat_template_writes_them(tmp_path, tokenizer):
    problem = prepared(tmp_path, CHATS * 30, with_template(tokenizer))
    first = "[system] be brief\n[user] the fox?\n[assistant] quick" + END
    # The space before a reply is part of its first token.
    assert learned_texts(problem, tmp_path / "data") == {
        (first, f" quick{END}"),
        (f"{first}\n[user] the dog?\n[assistant] lazy{END}", f" quick{END} lazy{END}"),
    }
    kept = read_template(problem, tmp_path / "data", tmp_path / "a run without a template")
    assert kept.render(CHAT[:3]) == f"{END}{first}\n"
    assert pickle.loads(pickle.dumps(problem)).options.files == problem.options.files


TABLE = itertools.product(tiny_tokenizers.TOKENIZERS, tiny_tokenizers.TEMPLATES)


@pytest.mark.parametrize(("kind", "template"), TABLE)
def test_training_reads_the_tokens_of_apply_chat_template(tmp_path, kind, template):
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")
    source = tiny_tokenizers.TEMPLATES[template]
    tiny_tokenizers.write(tmp_path / "tokenizer", kind, source)
    (tmp_path / "tokenizer/generation_config.json").write_text('{"eos_token_id": [1, 2, 3, 4]}')
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer")
    records = [{"messages": each} for each in tiny_tokenizers.CONVERSATIONS]
    problem = prepared(tmp_path, records * 20, tmp_path / "tokenizer")
    data_dir = tmp_path / "data"
    hparams = HParams()
    hparams.add("bos_token_id", -1)
    problem.change_hparams(hparams, data_dir)

    def read_and_learned(messages):
        masks = {"return_dict": True, "return_assistant_tokens_mask": True}
        written = theirs.apply_chat_template(messages, **masks)
        ids, learned = written["input_ids"], written["assistant_masks"]
        last = max(n for n, each in enumerate(learned) if each)
        return tuple(ids[: last + 1]), tuple(learned[: last + 1])

    found = set()
    for ids, weights in stored_examples(problem, data_dir, "train"):
        # A model reads BOS before the targets, and does not learn to predict it.
        if hparams.bos_token_id >= 0:
            ids, weights = [hparams.bos_token_id, *ids], [0, *weights]
        found.add((tuple(ids), tuple(weights)))
    assert found == {read_and_learned(each) for each in tiny_tokenizers.CONVERSATIONS}


def test_a_model_that_reads_another_first_token_is_warned_of(tmp_path, tokenizer, caplog):
    problem = prepared(tmp_path, CHATS * 30, with_template(tokenizer))
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.set("bos_token_id", 9)
    training_inputs(problem, tmp_path / "data", hparams, Layout(), seed=0)
    assert "bos_token_id=9" in caplog.text
    problem.change_hparams(hparams, tmp_path / "data")
    caplog.clear()
    training_inputs(problem, tmp_path / "data", hparams, Layout(), seed=0)
    assert "bos_token_id" not in caplog.text


@pytest.mark.slow
def test_a_training_that_makes_its_data_reads_their_first_token(tmp_path, tokenizer, capsys):
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps({"messages": each}) + "\n" for each in CHATS * 30))
    command = ["t2tp_trainer", "--generate_data", "--problem=instructions"]
    command += ["--model=transformer_lm", "--hparams_set=transformer_lm_tiny", "--train_steps=1"]
    command += ["--hparams=max_length=64,batch_size=128,num_hidden_layers=1"]
    with_template(tokenizer, TEMPLATE.removeprefix("{{ bos_token }}"))  # BOS is 0 (END) by default.
    command += [f"--problem_options=files={chats},vocabulary_from={tokenizer}"]
    command += [f"--data_dir={tmp_path / 'data'}", f"--output_dir={tmp_path / 'run'}"]
    assert t2tp_trainer([*command, "--schedule=train"]) == 0
    assert "begin with token" not in capsys.readouterr().err
    hparams = run_files.read(tmp_path / "run").hparams
    begin = hparams.bos_token_id
    hparams.set("bos_token_id", begin + 1)
    problems.find("instructions", "").change_hparams(hparams, tmp_path / "data")
    assert begin == hparams.bos_token_id > 0


@pytest.mark.parametrize("kind", tiny_tokenizers.TOKENIZERS)
def test_a_prompt_and_its_completion_are_encoded_as_one_text(tmp_path, kind):
    tiny_tokenizers.write(tmp_path / "tokenizer", kind)
    vocabulary = load_vocabulary(tmp_path / "tokenizer")
    pairs = [{"prompt": f"the fox {n}:", "completion": f"jumps {n}"} for n in range(40)]
    problem = prepared(tmp_path, pairs, tmp_path / "tokenizer")
    found = set()
    for ids, weights in stored_examples(problem, tmp_path / "data", "train"):
        prompt = ids[: weights.index(1)]
        found.add((tuple(prompt), tuple(ids)))
    end = vocabulary.end_of_document
    assert found <= {
        (
            tuple(vocabulary.encode(each["prompt"])),
            (*vocabulary.encode(each["prompt"] + each["completion"]), end),
        )
        for each in pairs
    }


@pytest.mark.parametrize("has_template", [True, False])
def test_shapes_of_sharegpt_and_alpaca_are_those_of_ours(tmp_path, tokenizer, has_template):
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    turns = [{"from": names[each["role"]], "value": each["content"]} for each in CHAT]
    told = [{"role": "user", "content": "the\n\nfox?"}, {"role": "assistant", "content": "quick"}]
    asked = [{"role": "user", "content": "the dog?"}, {"role": "assistant", "content": "lazy"}]
    theirs = [
        {"instruction": "the", "input": "fox?", "output": "quick"},
        {"instruction": "the dog?", "input": "", "output": "lazy"},
    ]
    ours = [{"prompt": f"{x['content']}\n\n", "completion": y["content"]} for x, y in (told, asked)]
    if has_template:
        with_template(tokenizer)
        theirs.append({"conversations": turns})
        ours = [{"messages": each} for each in (told, asked, CHAT)]
    learned = []
    for name, records in {"theirs": theirs, "ours": ours}.items():
        (tmp_path / name).mkdir()
        problem = prepared(tmp_path / name, records * 20, tokenizer)
        learned.append(learned_texts(problem, tmp_path / name / "data"))
    assert learned[0] == learned[1]
    assert len(learned[0]) == len(ours)


def test_conversations_without_a_template_are_refused(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=rf"data.jsonl, line \d+: .*{tokenizer}"):
        prepared(tmp_path, CHATS * 30, tokenizer)


@pytest.mark.parametrize("arrangement", ["packed", "padded"])
def test_the_rows_of_a_batch_have_the_weights_of_their_tokens(tmp_path, tokenizer, arrangement):
    problem = prepared(tmp_path, PAIRS, tokenizer, arrangement=arrangement)
    data_dir, length = tmp_path / "data", 64
    of_text = {tuple(ids): weights for ids, weights in stored_examples(problem, data_dir, "train")}
    batch = problem.stream(data_dir, "train", batch_size=4, length=length)[0]
    names = ("targets", "targets_segmentation", "targets_position", "targets_weights")
    targets, segments, positions, weights = (batch[name][0:4, :] for name in names)
    assert (segments.max() > 1) == (arrangement == "packed")
    assert not weights[segments == 0].any()
    seen = 0
    for row in range(4):
        for segment in range(1, segments[row].max() + 1):
            inside = segments[row] == segment
            wanted = of_text[tuple(targets[row][inside])]
            np.testing.assert_array_equal(weights[row][inside], wanted)
            np.testing.assert_array_equal(positions[row][inside], np.arange(inside.sum()))
            seen += 1
    assert seen >= 4


REFUSED = [
    ("{not json", "not JSON"),
    ({"prompt": "a"}, "neither 'messages' nor 'prompt' and 'completion', only 'prompt'"),
    ({"prompt": "a", "completion": 3}, "'completion' is 3, and must be a text"),
    ({"prompt": "a", "completion": ""}, "there is nothing to learn"),
    ({"messages": []}, "a conversation is a list of messages"),
    ({"conversations": [{"from": "me", "value": "a"}]}, "'from' must be one of human, user"),
    ({"messages": CHAT[:2]}, "there is nothing to learn"),
    ({"messages": [*CHAT[:2], {**CHAT[2], "weight": 0}]}, "there is nothing to learn"),
    ({"messages": [*CHAT[:2], {**CHAT[2], "weight": 0.5}]}, "must be 0 or 1"),
    ({**PAIRS[0], "tools": [{}]}, "'tools' belongs to a conversation"),
    ({"messages": [{"role": "assistant"}]}, "'content' is None, and must be a text"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_a_bad_line_is_refused_by_file_and_line(tmp_path, tokenizer, capfd, line, message):
    file = written(tmp_path, [*PAIRS[:6], line, *PAIRS[6:]])
    flags = [
        "--problem=instructions",
        f"--data_dir={tmp_path / 'data'}",
        f"--problem_options=files={file},vocabulary_from={with_template(tokenizer)}",
    ]
    assert t2tp_datagen(["t2tp_datagen", *flags]) == 1
    said = capfd.readouterr().err
    assert f"{file}, line 7: " in said
    assert message in said


def test_a_template_that_rewrites_earlier_messages_is_refused(tmp_path, tokenizer):
    rewriting = "{{ messages | length }}" + TEMPLATE
    with pytest.raises(ValueError, match=r"data.jsonl, line \d+: .*template writes message 3"):
        prepared(tmp_path, [CHATS[1]] * 20, with_template(tokenizer, rewriting))


# Like Qwen3's: only the last reply keeps its reasoning, and tools stand in front.
REASONING = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{{ mode }}"
    "{% for m in messages %}[{{ m.role }}] "
    "{% if m.role == 'assistant' and loop.last %}<think>{{ m.reasoning }}</think>{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% elif m.content %}{{ m.content[0].text }}"
    "{% endif %}{% for c in m.tool_calls or [] %}{{ c.name }}{% endfor %}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "find"}], "weight": 0}


def test_tools_and_weights_and_parts_are_read_as_apply_chat_template_reads_them(
    tmp_path, tokenizer
):
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")
    asked = {"role": "user", "content": [{"type": "text", "text": "the fox?"}]}
    reply = {"role": "assistant", "content": "quick", "reasoning": "so"}
    record = {"messages": [asked, CALL, {"role": "tool", "content": "3"}, reply]}
    record |= {"tools": [{"name": "find"}], "chat_template_kwargs": {"mode": "fast"}}
    problem = prepared(tmp_path, [record] * 20, with_template(tokenizer, REASONING))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tokenizer)
    wanted = theirs.apply_chat_template(
        record["messages"], tools=record["tools"], mode="fast", tokenize=False
    )
    assert wanted.startswith(END + '[{"name": "find"}]fast[user] the fox?')
    stored = wanted.removeprefix(END), f"<think>so</think>quick{END}"
    assert learned_texts(problem, tmp_path / "data") == {stored}
    (other := tmp_path / "other").mkdir()
    earlier = {"messages": [asked, {**CALL, "weight": 1}, asked, reply]}
    with pytest.raises(ValueError, match='message 2 differently .* "weight": 0'):
        prepared(other, [earlier] * 20, tokenizer)


def loss(family, batch, **changes):
    import t2tp

    model = FAMILIES[family].make(**changes)
    features = {name: feature_of(array) for name, array in batch.items()}

    def step(mesh, fed):
        out = model.loss(mesh, fed, training=True)
        (term, *_) = out.terms.values()
        return {"loss": out.loss, "weight": term.weight}

    out = t2tp.Program(step, features)(batch)
    return float(out["loss"]), float(out["weight"])


@pytest.mark.parametrize("family", ["lm", "moe"])
def test_the_loss_is_the_mean_over_what_has_a_weight(family):
    batch = make_batch()
    few = {"moe_load_balance_loss": 0.0, "moe_router_z_loss": 0.0} if family == "moe" else {}
    weights = np.random.default_rng(0).integers(0, 2, batch["targets"].shape).astype(np.int32)
    whole, tokens = loss(family, batch, **few)
    first, of_first = loss(family, {**batch, "targets_weights": weights}, **few)
    second, of_second = loss(family, {**batch, "targets_weights": 1 - weights}, **few)
    assert of_first == (weights * (batch["targets_segmentation"] > 0)).sum()
    assert of_first + of_second == tokens
    assert first * of_first + second * of_second == pytest.approx(whole * tokens, rel=1e-5)
    assert first != pytest.approx(second, rel=1e-3)


def test_a_model_that_would_learn_prompts_is_refused():
    names = ("targets", "targets_segmentation", "targets_position", "targets_weights")
    FAMILIES["lm"].make().check_features(names)
    with pytest.raises(FeatureMismatchError, match="targets_weights"):
        FAMILIES["masked"].make().check_features(names)
