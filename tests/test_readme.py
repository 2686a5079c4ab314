"""The README's code works."""

import os
import re
from pathlib import Path

from tests.patience import PATIENCE
from tests.python_code import run_code

README = Path(__file__).parent.parent / "README.md"


def test_the_program_in_ten_lines_runs():
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = run_code(snippet, env=environment, timeout=PATIENCE)
    assert done.stderr == ""
    losses = [float(line) for line in done.stdout.splitlines()[:3]]
    assert losses[0] > losses[1] > losses[2] > 0
    assert "processor 3: /device:CPU:3" in done.stdout
    assert "allreduce" in done.stdout


def test_every_page_it_names_exists():
    named = re.findall(r"\]\((docs/[\w./]+)\)", README.read_text())
    missing = [page for page in named if not (README.parent / page).exists()]
    assert named and not missing


def test_importing_t2tp_is_quick_and_quiet():
    done = run_code("import t2tp, sys; assert 'tensorflow' not in sys.modules; t2tp.HParams(a=1)")
    assert (done.stdout, done.stderr) == ("", "")
