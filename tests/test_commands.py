"""Every command in the README and in docs/ works as it is written, some with fewer steps."""

import shutil
from pathlib import Path

import pytest

from t2tp import problems
from t2tp.problems import python_stdlib
from t2tp.problems.algorithmic import AlgorithmicProblem
from t2tp.problems.python_stdlib import source_files
from t2tp.toml import tomllib
from tests.huggingface.tiny_files import write_tiny_chat_gpt2, write_tiny_llama
from tests.page_blocks import blocks
from tests.page_commands import run
from tools.page_commands import PAGES, commands

_TRAIN_REVERSE = (
    "t2tp_trainer --problem=algorithmic_reverse_binary40 --model=transformer --generate_data"
    " --hparams_set=transformer_tiny --data_dir=data --eval_steps=1 --save_checkpoints_steps=1"
    " --hparams=batch_size=8,d_model=16,d_ff=16,num_heads=2,d_kv=8,num_hidden_layers=1"
    " --train_steps=2 --output_dir=run"
)

FEW_SAMPLES = {"train": 500, "validation": 50, "test": 50}
_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def _write_numbers(path: Path) -> None:
    numbers = ((n, " ".join(_DIGITS[int(digit)] for digit in str(n))) for n in range(4000))
    path.write_text("".join(f"{n}\t{words}\n" for n, words in numbers))


def _write_task(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(blocks("huggingface.md", "yaml")[0])


MAKERS = {
    "gpt2": write_tiny_chat_gpt2,
    "llama": write_tiny_llama,
    "tokenizer": write_tiny_llama,
    "numbers.tsv": _write_numbers,
    "tasks/animals.yaml": _write_task,
}
WALKS = tomllib.loads(Path(__file__).with_name("page_walks.toml").read_text("utf-8"))
LESS = WALKS.pop("less")
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


EACH_WALK = [
    pytest.param(page, marks=[] if page in WALKED_EARLY else pytest.mark.ci_only) for page in WALKS
]


@pytest.mark.slow
@pytest.mark.parametrize("page", EACH_WALK)
def test_the_commands_of_a_page_work_one_after_another(page, tmp_path, data, request):
    walk = {"runs": (), "files": {}, "repeated": {}, "makes": (), "less": {}} | WALKS[page]
    (tmp_path / "data").symlink_to(data)
    for name in walk["runs"]:
        shutil.copytree(request.getfixturevalue("trained"), tmp_path / name)
    repeated = {name: text * times for name, (text, times) in walk["repeated"].items()}
    for name, text in {**walk["files"], **repeated}.items():
        (tmp_path / name).write_text(text)
    for name in walk["makes"]:
        MAKERS[name](tmp_path / name)
    shown = [words for words in commands(page) if not _leaves_something_out(words)]
    assert {word for words in shown for word in words} >= set(walk["less"])
    for number, words in enumerate(shown):
        run(words, tmp_path, number, {**LESS, **walk["less"]})


def test_every_page_with_commands_is_walked():
    shown = {
        page for page in PAGES if any(not _leaves_something_out(words) for words in commands(page))
    }
    assert shown - ELSEWHERE == set(WALKS)
    assert shown >= ELSEWHERE
    assert LESS.keys() <= {word for page in PAGES for words in commands(page) for word in words}
