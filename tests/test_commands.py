"""Every command in the README and in docs/ works as it is written, some with fewer steps."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from t2tp import problems
from t2tp.problems import python_stdlib
from t2tp.problems.algorithmic import AlgorithmicProblem
from t2tp.problems.python_stdlib import source_files
from tests.huggingface.tiny_files import write_tiny_chat_gpt2, write_tiny_llama
from tests.page_blocks import blocks
from tests.page_commands import run
from tools.page_commands import PAGES, commands

_TINY_TRANSFORMER = "d_model=16,d_ff=16,num_heads=2,d_kv=8,num_hidden_layers=1"
_CHECKPOINTS, _BEAMS = "--checkpoints=run/checkpoints", "--decode_hparams=beam_size=8"
_TRAIN_REVERSE = (
    "t2tp_trainer --problem=algorithmic_reverse_binary40 --model=transformer --generate_data"
    " --hparams_set=transformer_tiny --data_dir=data --eval_steps=1 --save_checkpoints_steps=1"
    f" --hparams=batch_size=8,{_TINY_TRANSFORMER} --train_steps=2 --output_dir=run"
)

FEW_SAMPLES = {"train": 500, "validation": 50, "test": 50}
_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def _in_words(number: int) -> str:
    return " ".join(_DIGITS[int(digit)] for digit in str(number))


@dataclass(frozen=True)
class Walk:
    """A page whose commands are run one after another in one directory.

    Attributes:
      page: path of the page.
      less: words that are replaced to save time, in addition to `LESS`.
      runs: directories of runs that the page presupposes; each is a copy of `trained`.
      files: files that the page presupposes: name -> text.
      makes: further files or directories that the page presupposes: name -> function that writes
        the path it is given.
    """

    page: str
    less: dict[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    makes: dict[str, Callable[[Path], object]] = field(default_factory=dict)


# Words that are replaced on any page, to save time.
LESS = {
    "--train_steps=300": "--train_steps=2 --eval_steps=1",
    "--train_steps=500": "--train_steps=2",
    "--train_steps=1000": "--train_steps=2 --eval_steps=1",
    "--eval_steps=8": "--eval_steps=1",
    "--hparams=batch_size=64": f"--hparams=batch_size=8,{_TINY_TRANSFORMER}",
}
WALKS = [
    Walk("README.md"),
    Walk("docs/trainer.md"),
    Walk(
        "docs/checkpoints.md",
        {
            f"{_CHECKPOINTS}/step-00002000,other_run": f"{_CHECKPOINTS}/step-00000002,other_run",
            "--num_last_checkpoints=8": "--num_last_checkpoints=2",
            "--schedule=evaluate": "--schedule=evaluate --eval_steps=1",
        },
        runs=("run", "other_run"),
    ),
    Walk(
        "docs/data.md",
        {"--vocab_size=4096": "--vocab_size=280"},
        files={
            "a.tsv": "one\teins\ntwo\tzwei\n" * 50,
            "b.en": "three\n" * 50,
            "b.de": "drei\n" * 50,
        },
    ),
    Walk(
        "docs/decoding.md",
        {f"{_BEAMS},alpha=0.8": f"{_BEAMS},alpha=0.8,num_samples=2"},
        runs=("run",),
        files={
            "sources.txt": "0 1 1\n1 0\n",
            "references.txt": "1 1 0\n0 1\n",
            "pairs.txt": "0 1 1\t1 1 0\n",
        },
    ),
    Walk("docs/litert.md", runs=("run",)),
    Walk(
        "docs/huggingface.md",
        {"--hparams_set=transformer_lm_small": "--hparams_set=transformer_lm_tiny"},
        files={
            "texts.txt": "the quick fox\nthe lazy dog\n" * 50,
            "prompts.txt": "the\na b\n",
            "examples.jsonl": '{"prompt": "the quick", "completion": " fox"}\n' * 50,
            "chats.jsonl": '[{"role": "user", "content": "the fox?"}]\n' * 2,
            "tasks/animals.yaml": blocks("huggingface.md", "yaml")[0],
            "animals.jsonl": '{"question": "the", "choices": [" fox", " dog"], "answer": 1}\n' * 3,
        },
        makes={
            "gpt2": write_tiny_chat_gpt2,
            "llama": write_tiny_llama,
            "tokenizer": write_tiny_llama,
        },
    ),
    Walk(
        "docs/preferences.md",
        {"--hparams=num_hidden_layers=8,d_model=512,d_ff=1536": "--hparams=d_model=8,d_ff=16"},
        files={
            "pairs.jsonl": '{"prompt": "the", "chosen": " quick fox", "rejected": " dog"}\n' * 60,
            "prompts.txt": "the\n",
            "texts.txt": "the quick fox\nthe lazy dog\n" * 50,
        },
        makes={"llama": write_tiny_llama},
    ),
    Walk("docs/planning.md", {"--devices=16": "--devices=2"}),
    Walk("docs/data_at_scale.md"),
    Walk("docs/many_gpus.md"),
    Walk(
        "docs/tuning.md",
        {
            "--trials=24": "--trials=2",
            "--parallel_trials=4": "--parallel_trials=2",
            "--local_eval_frequency=50": "--local_eval_frequency=1",
            "--hparams_set=transformer_lm_base": "--hparams_set=transformer_lm_tiny"
            " --train_steps=1 --eval_steps=1",
        },
    ),
    Walk("docs/image_models.md"),
    Walk(
        "docs/coming_from_tensor2tensor.md",
        {
            "--train_steps=2000": "--train_steps=4",
            "--local_eval_frequency=500": "--local_eval_frequency=2",
            "--save_checkpoints_steps=500": "--save_checkpoints_steps=1",
            "--trials=2": "--trials=1",
            "--hparams=batch_size=64,max_length=32": (
                f"--hparams=batch_size=8,max_length=32,{_TINY_TRANSFORMER}"
            ),
        },
        files={"numbers.tsv": "".join(f"{n}\t{_in_words(n)}\n" for n in range(4000))},
    ),
]
# The pages whose commands `make test` runs; `make test-ci` runs all pages.
WALKED_EARLY = {"README.md"}
# Pages whose commands other tests run, or whose commands leave something out.
ELSEWHERE = {
    *("docs/new_model.md", "docs/new_problem.md", "docs/object_stores.md", "docs/own_data.md"),
    "docs/watching.md",
}


def _leaves_something_out(words: list[str]) -> bool:
    return any("..." in word for word in words)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Creates the data directory of all walks, with small data of two problems."""
    directory = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(python_stdlib, "source_files", lambda path: source_files(path)[::16])
        changed.setattr(AlgorithmicProblem, "sample_counts", FEW_SAMPLES)
        problems.find("languagemodel_python_stdlib", "vocab_size=1024").prepare(directory)
        problems.find("algorithmic_reverse_binary40").prepare(directory)
    return directory


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data) -> Path:
    """Trains a transformer for two steps to reverse digits."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "data").symlink_to(data)
    run(_TRAIN_REVERSE.split(), directory, 0)
    return directory / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    "walk",
    [
        pytest.param(
            walk, marks=[] if walk.page in WALKED_EARLY else pytest.mark.ci_only, id=walk.page
        )
        for walk in WALKS
    ],
)
def test_the_commands_of_a_page_work_one_after_another(walk, tmp_path, data, request):
    (tmp_path / "data").symlink_to(data)
    for name in walk.runs:
        shutil.copytree(request.getfixturevalue("trained"), tmp_path / name)
    for name, text in walk.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, make in walk.makes.items():
        make(tmp_path / name)
    shown = [words for words in commands(walk.page) if not _leaves_something_out(words)]
    assert {word for words in shown for word in words} >= set(walk.less)
    for number, words in enumerate(shown):
        run(words, tmp_path, number, {**LESS, **walk.less})


def test_every_page_with_commands_is_walked():
    shown = {
        page for page in PAGES if any(not _leaves_something_out(words) for words in commands(page))
    }
    assert shown - ELSEWHERE == {walk.page for walk in WALKS}
    assert shown >= ELSEWHERE
    assert LESS.keys() <= {word for page in PAGES for words in commands(page) for word in words}
