"""The example of a user's directory, as docs/new_problem.md walks through it."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

import t2tp.hparams  # noqa: F401 (registers the sets that a user's set begins with)
from t2tp import problems, registry
from t2tp.problems.user_dir import import_user_dir
from t2tp.trainer.run_dir import run_files
from tests.page_blocks import blocks
from tests.page_commands import run
from tests.problems.decoded import decoded
from tests.python_code import run_code

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "new_problem.md").read_text()
EXAMPLE = REPOSITORY / "examples" / "my_problems"


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """Runs the page's commands in a directory."""
    directory = tmp_path_factory.mktemp("walk")
    (directory / "examples").symlink_to(REPOSITORY / "examples")
    shell = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)).replace("\\\n", " ")
    said = ""
    for number, line in enumerate(shell.splitlines()):
        said += run(shlex.split(line), directory, number)
    assert re.search("targets: '[MDCLXVI]+'", said)  # output of --inspect
    assert (directory / "run" / "checkpoints").is_dir()
    return directory


@pytest.mark.slow
def test_the_data_are_made(directory):
    import_user_dir(EXAMPLE)
    problem = problems.find("roman_numerals")
    splits = problem.check_prepared(directory / "data").splits
    assert [sizes.examples for sizes in splits.values()] == [3199, 400, 400]
    samples = decoded(problem, directory / "data")["test"]
    numerals = {sample["inputs"]: sample["targets"] for sample in samples}
    assert numerals["1999"] == "MCMXCIX" and numerals["9"] == "IX"


@pytest.mark.slow
def test_the_lines_of_python_on_the_page_work(directory):
    lines = re.findall(r"```python\n(.*?)```", PAGE, re.S)[-1]
    shown = run_code(lines, cwd=directory).stdout.splitlines()
    assert shown[0] == "(8, 16)"
    assert re.fullmatch("[MDCLXVI]+", shown[1])


def test_the_page_shows_what_is_in_the_file():
    source = (EXAMPLE / "roman_numerals.py").read_text()
    shown = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    for line in shown.splitlines():
        if not line.strip().startswith("def "):  # the page omits the types
            assert line in source


@pytest.mark.parametrize("init", [None, "", "# nothing\n", '"""My own."""\n'], ids=str)
def test_without_code_in_an_init_every_module_is_imported(tmp_path, init):
    number = 1 if init is None else len(init)
    package = tmp_path / f"empty_init_{number}"
    package.mkdir()
    if init is not None:
        (package / "__init__.py").write_text(init)
    (package / "one.py").write_text(
        "from t2tp import registry\n"
        f"registry.register_hparams('empty_init_{number}')(lambda: None)\n"
    )
    import_user_dir(package)
    assert f"empty_init_{number}" in registry.list_hparams()


def test_what_cannot_be_imported_is_said(tmp_path):
    with pytest.raises(NotADirectoryError, match="there is no such directory"):
        import_user_dir(tmp_path / "nowhere")
    (tmp_path / "my-problems").mkdir()
    with pytest.raises(ValueError, match="a directory named 'my-problems'.*'my_problems'"):
        import_user_dir(tmp_path / "my-problems")
    (tmp_path / "of_t2t").mkdir()
    (tmp_path / "of_t2t" / "words.py").write_text("\nfrom tensor2tensor.utils import registry\n")
    with pytest.raises(ValueError, match=r"words.py, line 2: .* is in docs/(\S+)#a-problem-class$"):
        import_user_dir(tmp_path / "of_t2t")


def test_the_class_that_replaces_one_of_tensor2tensor_works(tmp_path):
    (tmp_path / "of_page").mkdir()
    shown, *_ = blocks("coming_from_tensor2tensor.md", "python")
    (tmp_path / "of_page" / "shout.py").write_text(shown)
    (tmp_path / "lines.txt").write_text("".join(f"the line {n}\n" for n in range(40)))
    import_user_dir(tmp_path / "of_page")
    problem = problems.find("shout")
    problem.prepare(tmp_path / "data", tmp_dir=tmp_path)
    samples = decoded(problem, tmp_path / "data")["test"]
    assert {each["inputs"]: each["targets"] for each in samples} == {
        f"the line {n}": f"THE LINE {n}" for n in (1, 21)
    }


def test_python_s_path_stays_as_it_is(tmp_path):
    """A file next to the directory does not shadow an installed package."""
    usr_dir = tmp_path / "with_neighbours"
    usr_dir.mkdir()
    (usr_dir / "__init__.py").write_text("from with_neighbours import one\n")
    (usr_dir / "one.py").write_text("from . import __name__ as package\n")
    (tmp_path / "neighbour.py").write_text("raise AssertionError('imported')\n")
    before = list(sys.path)
    package = import_user_dir(usr_dir)
    assert package.one.package == "with_neighbours"
    assert sys.path == before
    assert importlib.util.find_spec("neighbour") is None
    assert import_user_dir(usr_dir) is package


def test_a_file_that_is_edited_while_data_are_made_does_not_cost_them(tmp_path):
    """The edited file defines a model, and is next to the problem's file."""
    usr_dir = tmp_path / "edited_meanwhile"
    usr_dir.mkdir()
    model = usr_dir / "model.py"
    model.write_text("")
    (usr_dir / "words.py").write_text(
        "from t2tp import registry\n"
        "from t2tp.problems.text_to_text import Text2TextProblem\n"
        "@registry.register_problem\n"
        "class EditedWords(Text2TextProblem):\n"
        "    vocabulary_kind = 'byte'\n"
        "    def samples(self, split, directory, tmp_dir):\n"
        f"        with open({str(model)!r}, 'a') as file:\n"
        "            file.write('# better')\n"
        "        return [{'inputs': 'a', 'targets': split}]\n"
    )
    import_user_dir(usr_dir)
    problem = problems.find("edited_words")
    problem.prepare(tmp_path / "data")
    assert model.read_text()
    assert problem.check_prepared(tmp_path / "data").splits["train"].examples == 1


@pytest.mark.parametrize("name", ["json", "signal", "sentencepiece", "builtins"])
def test_names_of_other_packages_are_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"another package is named {name}"):
        import_user_dir(tmp_path / name)


def test_the_remedies_that_are_printed_name_the_directory():
    import_user_dir(EXAMPLE)
    _, *words = shlex.split(problems.find("roman_numerals").datagen_command("data"))
    assert words == ["--problem=roman_numerals", "--data_dir=data", f"--t2t_usr_dir={EXAMPLE}"]
    assert "usr_dir" not in problems.find("algorithmic_identity_decimal40").datagen_command("data")


@pytest.mark.slow
def test_a_run_of_a_users_directory_is_loaded_with_the_flag(directory, tmp_path):
    where = [f"--output_dir={directory / 'run'}", f"--data_dir={directory / 'data'}"]
    flags = run_files.read_flags(directory / "run")
    assert flags["t2t_usr_dir"] == str(directory / "examples/my_problems")
    command = ["t2tp_eval", "--eval_steps=1", f"--t2t_usr_dir={flags['t2t_usr_dir']}", *where]
    run(command, tmp_path, 0)
