"""Every example runs, and learns."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.huggingface.tiny_files import write_tiny_gpt2
from tests.warm_processes import WarmProcess

EXAMPLES = Path(__file__).parent.parent / "examples"
# The arguments that train the model of `my_model`.
_TRAIN = ["--problem=counting_text", "--model=ngram_lm", "--hparams_set=ngram_lm_tiny"]
_TRAIN += ["--generate_data", "--data_dir=data", "--output_dir=run", "--mesh_shape=data:2;model:2"]
_TRAIN += ["--train_steps=20", "--eval_steps=1", "--log_step_count_steps=1"]


def _write_chats(path: Path) -> None:
    """Writes chats that all have the same answer."""
    names = ["fox", "dog", "lazy fox", "quick dog", "brown fox"]
    lines = [json.dumps({"prompt": f"the {name}", "completion": " jumps"}) for name in names * 20]
    path.write_text("\n".join(lines))


# Examples that `make demo`, tests/huggingface and tests/problems/test_user_dir.py run.
ELSEWHERE = {"demo.sh", "compare_with_compressors.py", "huggingface.py", "my_problems"}
# Arguments that a script requires, and the functions that write the files they name.
ARGUMENTS = {
    "save_and_restore.py": ["checkpoints"],
    "fine_tune_with_lora.py": ["model", "chats.jsonl", "output", "12"],
}
MAKES = {"fine_tune_with_lora.py": {"model": write_tiny_gpt2, "chats.jsonl": _write_chats}}
SCRIPTS = sorted(
    path.name
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]
    if path.name not in ELSEWHERE
)


def run_script() -> None:
    """Runs a script as `python PATH` does, or the cells of a notebook."""
    del sys.argv[0]
    path = Path(sys.argv[0])
    if path.suffix == ".py":
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    names: dict = {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            exec(compile("".join(cell["source"]), path.name, "exec"), names)


def losses(target: str, arguments: list[str], directory: Path) -> list[float]:
    """Runs a function in a process of its own; returns the losses that it prints."""
    with WarmProcess(target, arguments, {}, directory / "output", directory=directory) as process:
        assert process.wait() == 0, process.err.read_text()
        printed = process.out.read_text() + process.err.read_text()
    return [float(loss) for loss in re.findall(r"\bstep +\S+ +.*?loss ([\d.]+)", printed)]


# Pipelines take too long for the fast tests.
_CASES = [s if s != "pipeline.py" else pytest.param(s, marks=pytest.mark.slow) for s in SCRIPTS]


@pytest.mark.slow
@pytest.mark.parametrize("script", _CASES)
def test_a_script_learns(script, tmp_path):
    for name, write in MAKES.get(script, {}).items():
        write(tmp_path / name)
    arguments = [str(EXAMPLES / script), *ARGUMENTS.get(script, [])]
    found = losses("tests.test_examples:run_script", arguments, tmp_path)
    assert len(found) >= 2 and found[-1] < found[0]


@pytest.mark.slow
def test_what_a_users_directory_registers_can_be_trained(tmp_path):
    flags = [f"--t2t_usr_dir={EXAMPLES / 'my_model'}", *_TRAIN]
    found = losses("t2tp.trainer.cli.programs:t2tp_trainer", flags, tmp_path)
    assert len(found) >= 2 and found[-1] < found[0]


def test_no_example_is_without_a_test():
    names = {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"}
    assert names == {*SCRIPTS, "my_model", *ELSEWHERE}
