"""Runs on tasks of lm-evaluation-harness, compared with its own `--model hf` on the same model."""

import json
import re
import sys
from pathlib import Path

import pytest
from harness_tasks import NAMES, write_tasks

from t2tp.decoding.scoring import Score
from t2tp.trainer.cli.programs import t2tp_eval, t2tp_launch
from tests.huggingface import tiny_files
from tests.trainer.command import call
from tests.trainer.hooks.events import read_scalars

lm_eval = pytest.importorskip("lm_eval", reason="pip install -e '.[harness]'")
pytest.importorskip("torch", reason="pip install -e '.[hf-tests]'")

_SIZES = {
    "gpt2": {"n_positions": 128, "n_layer": 2, "vocab_size": 289},
    "llama": {"max_position_embeddings": 128, "num_hidden_layers": 2, "vocab_size": 289},
}


def _sequence(name: str) -> dict:
    return {"Sequence": {"id": name, "type_id": 0}}


# The kind of the model, and whether its prompts are conversations.
_KINDS = [("gpt2", False), ("llama", False), ("llama", True)]


@pytest.fixture(scope="module", params=_KINDS, ids=["gpt2", "llama", "llama, chat"])
def kind(request) -> tuple[str, bool]:
    return request.param


@pytest.fixture(scope="module")
def model(kind, tmp_path_factory) -> Path:
    """Makes a directory with `tasks`, a model in `hf`, and a `run` of the same model."""
    directory = tmp_path_factory.mktemp("harness")
    write_tasks(directory / "tasks", 4)
    write = {"gpt2": tiny_files.write_tiny_gpt2, "llama": tiny_files.write_tiny_llama}
    write[kind[0]](directory / "hf", eos_token_id=0, **_SIZES[kind[0]])
    tokens = {"eos_token": tiny_files.END, "tokenizer_class": "PreTrainedTokenizerFast"}
    if kind[0] == "llama":  # Begins each text with BOS.
        path = directory / "hf/tokenizer.json"
        tokenizer = json.loads(path.read_text())
        begin = {"id": "!", "ids": [1], "tokens": ["!"]}
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "!", "type_id": 0}}, _sequence("A")],
            "pair": [_sequence("A"), _sequence("B")],
            "special_tokens": {"!": begin},
        }
        path.write_text(json.dumps(tokenizer))
        tokens["bos_token"] = "!"
    tokens["chat_template"] = tiny_files.CHAT_TEMPLATE
    (directory / "hf/tokenizer_config.json").write_text(json.dumps(tokens))
    assert call("t2tp_convert", from_hf=directory / "hf", output_dir=directory / "run") == 0
    return directory


@pytest.fixture(scope="module")
def expected(kind, model) -> dict[str, list]:
    """Returns the harness's own answers by task."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    results = lm_eval.simple_evaluate(
        HFLM(str(model / "hf"), device="cpu", batch_size=4, dtype="float32"),
        tasks=NAMES,
        task_manager=TaskManager(include_path=str(model / "tasks")),
        apply_chat_template=kind[1],
        bootstrap_iters=0,
    )
    return results["samples"]


class _Words:
    """A codec whose tokens are words with the space before them."""

    end_of_document = 0

    def encode(self, text: str) -> list[int]:
        return [1 + sum(map(ord, word)) for word in re.findall(r" ?\w+|\W", text)]


def test_a_text_split_anywhere_has_tokens_to_score():
    from lm_eval.api.instance import Instance

    from t2tp.evaluation import HarnessModel

    def score(rows):
        seen.extend(row.targets[row.start :] for row in rows)
        return [Score(-1.0, False)] * len(rows)

    seen, text, words = [], "the quick  brown fox", _Words()
    model = HarnessModel(score, None, words, max_length=64, prefix_token=0)
    splits = [(text[:n], text[n:]) for n in range(len(text))]

    def asked(pairs):
        return [Instance("loglikelihood", {}, pair, 0, ("task", 7, 1)) for pair in pairs]

    model.loglikelihood(asked(splits))
    for (context, rest), scored in zip(splits, seen, strict=True):
        kept = len(context.rstrip())
        theirs = words.encode(text)[len(words.encode(text[:kept])) :]  # As `--model hf` has it.
        assert scored == (theirs or words.encode(rest))
        assert scored
    for context in ("", "the"):
        with pytest.raises(ValueError, match="document 7 of task task: the choice '' has no token"):
            model.loglikelihood(asked([(context, "")]))


def _answers(rows: list[dict]) -> list:
    """Returns the answers of each document as text, from the harness's results or its files."""
    answers = []
    for row in sorted(rows, key=lambda row: row["doc_id"]):
        for (answer,) in row["resps"]:
            parts = answer if isinstance(answer, (tuple, list)) else (answer,)
            answers.append([str(part) for part in parts])
    return answers


LAYOUTS = {
    "one device": [],
    "2x2": ["--mesh_shape=data:2;model:2", "--layout=batch:data;heads:model;d_ff:model"],
    "stages": ["--mesh_shape=stage:2", "--layout=layers:stage"],
    "two processes": ["--mesh_shape=data:2", "--layout=batch:data"],
}


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_the_answers_of_the_harness_itself(kind, model, expected, layout):
    flags = [f"--output_dir={model / 'run'}", f"--tasks={','.join(NAMES)}", "--log_samples"]
    flags += [f"--task_dir={model / 'tasks'}", "--task_batch_size=4", *LAYOUTS[layout]]
    flags += ["--apply_chat_template"] * kind[1]
    written = model / "run/eval_tasks"
    before = set(written.glob("*"))
    if layout == "two processes":
        command = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_eval", *flags]
        assert t2tp_launch(["t2tp_launch", "-n", "2", *command]) == 0
    else:
        assert t2tp_eval(["t2tp_eval", *flags]) == 0
    new = set(written.glob("*")) - before
    for name in NAMES:
        (path,) = [each for each in new if each.name.startswith(f"samples_{name}")]
        ours = _answers([json.loads(line) for line in path.read_text().splitlines()])
        for one, other in zip(ours, _answers(expected[name]), strict=True):
            if name in ("tiny_continue", "tiny_reply"):
                assert one == other
            else:
                assert float(one[0]) == pytest.approx(float(other[0]), abs=1e-4)
                assert one[1:] == other[1:]
    assert read_scalars(written)["tiny_choice/acc_norm"].keys() == {0}
    assert len([each for each in new if each.name.startswith("step-00000000_")]) == 1


REFUSED = [
    ({"tasks": "tiny_chioce"}, "did you mean tiny_choice"),
    ({"tasks": "tiny_choice", "output_dir": "/nowhere"}, "/nowhere holds no run"),
    ({"num_fewshot": 1}, "--num_fewshot has no effect here: it is for --tasks"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "says"), REFUSED)
def test_a_wrong_request_is_one_sentence(model, capfd, flags, says):
    task_dir = model / "tasks" if "tasks" in flags else None
    given = {"output_dir": model / "run", "task_dir": task_dir, **flags}
    capfd.readouterr()
    assert call("t2tp_eval", **given) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("t2tp_eval: ")]
    assert len(said) == 1 and says in said[0]
