"""Installs t2tp: the directories `hparams`, `problems` and `trainer` become packages of `t2tp`."""

from setuptools import find_packages, setup

# Top-level directories of the repository, where users look for them first.
PROVIDED = ("hparams", "problems", "trainer")

setup(
    packages=[
        *find_packages(include=["t2tp", "t2tp.*"]),
        *(
            f"t2tp.{package}"
            for name in PROVIDED
            for package in find_packages(include=[name, f"{name}.*"])
        ),
    ],
    package_dir={"t2tp": "t2tp", **{f"t2tp.{name}": name for name in PROVIDED}},
    package_data={
        "t2tp": ["py.typed"],
        "t2tp.hparams": ["*.toml"],
        "t2tp.huggingface": ["*.toml"],
        "t2tp.huggingface.model_types": ["*.toml"],
        "t2tp.report": ["*.css"],
        "t2tp.planner": ["clusters/*.toml"],
        "t2tp.trainer.cli": ["*.toml"],
    },
    # Otherwise setuptools takes clusters/, which holds data, for a package that is not listed.
    include_package_data=False,
)
