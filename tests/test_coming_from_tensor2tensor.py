"""The commands of docs/coming_from_tensor2tensor.md, one after another, with fewer steps."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import blocks
from tests.warm_processes import WarmProcess

_TINY = "d_model=16,d_ff=16,num_heads=2,d_kv=8,num_hidden_layers=1"

# What is done less of than on the page.
_LESS = {
    "--train_steps=2000": "--train_steps=4",
    "--train_steps=500": "--train_steps=2",
    "--local_eval_frequency=500": "--local_eval_frequency=2",
    "--save_checkpoints_steps=500": "--save_checkpoints_steps=1",
    "--eval_steps=8": "--eval_steps=1",
    "--trials=2": "--trials=1",
    "--hparams=batch_size=64": f"--hparams=batch_size=8,{_TINY}",
    "--hparams=batch_size=64,max_length=32": f"--hparams=batch_size=8,max_length=32,{_TINY}",
}

_PATHS = (
    "averaged",
    "data",
    "decoded.txt",
    "references.txt",
    "run",
    "search",
    "sources.txt",
    "numbers.tsv",
    "translator",
)

# Those that end with sys.exit, or start others.
_COLD = ("echo", "t2tp_datagen", "t2tp_tune")


def commands() -> list[list[str]]:
    """The words of each command of the page."""
    text = "".join(blocks("coming_from_tensor2tensor.md", "sh")).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


def run(words: list[str], folder: Path, number: int) -> None:
    """Runs a command, which has to succeed, on files in a folder."""
    program, *arguments = [_placed(_LESS.get(word, word), folder) for word in words]
    if program == "echo":
        text, _, path = arguments
        Path(path).write_text(text + "\n", "utf-8")
    elif program in _COLD:
        command = [sys.executable, "-m", f"t2tp.trainer.{program}", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    else:
        output = folder / f"output-{number}"
        with WarmProcess(f"t2tp.trainer.{program}:main", arguments, {}, output) as process:
            assert process.wait(300) == 0, process.err.read_text()


def _placed(word: str, folder: Path) -> str:
    """A word in which a file or folder of the page is in this one."""
    flag, equals, value = word.rpartition("=")
    return f"{flag}{equals}{folder / value}" if value in _PATHS else word


@pytest.mark.slow
def test_the_walkthrough_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    makes_numbers, _ = blocks("coming_from_tensor2tensor.md", "python")
    exec(compile(makes_numbers, "coming_from_tensor2tensor.md", "exec"), {})
    given = commands()
    used = {_LESS[word] for words in given for word in words if word in _LESS}
    assert used == set(_LESS.values())  # The page has not changed behind our back.
    for number, words in enumerate(given):
        run(words, tmp_path, number)
    assert len((tmp_path / "decoded.txt").read_text().splitlines()) == 1
    (exported,) = (tmp_path / "translator/export").iterdir()
    assert (exported / "saved_model.pb").exists()
    assert (tmp_path / "averaged/eval/eval.jsonl").exists()
    assert (tmp_path / "search/trial-0000/eval/eval.jsonl").exists()
