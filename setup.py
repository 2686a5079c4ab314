"""Installs t2tp, with the packages that `t2tp/` has as links: `hparams`, `problems`, `trainer`."""

from setuptools import find_packages, setup

setup(
    packages=find_packages(include=["t2tp", "t2tp.*"]),
    # With a directory for all packages, an editable installation adds it to `sys.path`. Otherwise
    # it adds an import hook, which Python asks only after the directory of the user's script: next
    # to a clone named t2tp, `import t2tp` would find this clone and no package in it.
    package_dir={"": "."},
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
