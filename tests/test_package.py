"""The sdist and the wheel contain all of t2tp and nothing else of the repository."""

import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.python_code import run_code

REPOSITORY = Path(__file__).parent.parent
# Directory of the repository -> package that it becomes.
PACKAGES = {
    "t2tp": "t2tp",
    "hparams": "t2tp/hparams",
    "problems": "t2tp/problems",
    "trainer": "t2tp/trainer",
}
BUILD_SDIST = "import setuptools.build_meta as backend; backend.build_sdist('dist')"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """Copies the files that a build reads, without leftovers of other builds."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(REPOSITORY / name, root)
    for directory in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / directory, root / directory, symlinks=True, ignore=ignored)
    return root


@pytest.fixture(scope="module")
def sdist(checkout) -> Path:
    subprocess.run([sys.executable, "-c", BUILD_SDIST], cwd=checkout, check=True)
    (built,) = (checkout / "dist").glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist) -> Path:
    """Builds the wheel from the sdist, so that it lacks any module that the sdist lacks."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *options, f"--wheel-dir={sdist.parent}"]
    subprocess.run([*command, str(sdist)], check=True)
    (built,) = sdist.parent.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_the_marker_of_typed_packages(checkout, wheel):
    sources = {
        f"{package}/{path.relative_to(checkout / directory).as_posix()}"
        for directory, package in PACKAGES.items()
        for path in (checkout / directory).rglob("*")
        if path.is_file()
    }
    assert "t2tp/py.typed" in sources
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == sources


@pytest.mark.slow
def test_the_sdist_holds_what_the_wheel_is_built_from(sdist):
    with tarfile.open(sdist) as archive:
        files = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py", "t2tp/py.typed"} <= files
    assert not {name for name in files if name.startswith(("tests/", "benchmarks/", "docs/"))}


@pytest.mark.slow
def test_python_next_to_the_clone_imports_the_package(checkout, tmp_path):
    clone = shutil.copytree(checkout, tmp_path / "t2tp", symlinks=True)
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("-packages")]
    (site / "shared.pth").write_text("\n".join(shared))
    pip = [sys.executable, "-m", "pip", f"--python={python}", "--disable-pip-version-check"]
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--editable"]
    subprocess.run([*pip, "install", *options, str(clone)], check=True)
    code = "import t2tp, t2tp.trainer.cli.programs as x; print(x.__file__, t2tp.Layout.__module__)"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert done.stdout.decode().split() == [
        f"{clone}/t2tp/trainer/cli/programs.py",
        "t2tp.mesh.layout",
    ]


@pytest.mark.slow
def test_a_build_prints_no_warnings(checkout, tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build", f"--build-base={tmp_path}"]
    done = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    assert "Warning:" not in done.stdout + done.stderr


def test_the_demo_installs_the_package_alone(tmp_path):
    command = ["make", "--dry-run", "demo", f"VENV={tmp_path}"]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    assert re.findall(r"pip install .*--editable (.*)", done.stdout) == ["'.'"]


@pytest.mark.slow
def test_the_demo_imports_only_what_the_package_requires_and_it_needs():
    modules = [f"t2tp.trainer.cli.{name}" for name in ("datagen", "train", "decode")]
    done = run_code(f"import sys, {', '.join(modules)}; print(*sys.modules)")
    imported = done.stdout.split()
    assert not {"torch", "transformers", "kubernetes", "optuna"} & set(imported)
    unused = ("t2tp.planner", "t2tp.layout_check", "t2tp.trainer.auto_layout")
    assert not [name for name in imported if name.startswith(unused)]


def test_every_command_that_installs_t2tp_names_an_extra_of_it():
    extras = set(importlib.metadata.metadata("t2tp").get_all("Provides-Extra"))
    files = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    files += [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]
    commands = [
        match
        for path in files
        for match in re.findall(r"pip install [^`\n]*?\[([\w,-]+)\]", path.read_text())
    ]
    assert len(commands) > 10
    assert {extra for command in commands for extra in command.split(",")} <= extras
    texts = "".join(path.read_text() for path in files)
    assert not re.search(r"pip install \S*t2tp", texts)  # t2tp is not on a package index.
