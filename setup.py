"""Installs t2tp: the folders `hparams`, `problems` and `trainer` become packages of `t2tp`."""

from setuptools import setup

SUBPACKAGES = (
    "checkpoint",
    "decoding",
    "explanation",
    "layers",
    "mesh",
    "metrics",
    "models",
    "ops",
    "optim",
)

setup(
    packages=[
        "t2tp",
        *(f"t2tp.{name}" for name in SUBPACKAGES),
        "t2tp.hparams",
        "t2tp.problems",
        "t2tp.trainer",
    ],
    package_dir={
        "t2tp": "t2tp",
        "t2tp.hparams": "hparams",
        "t2tp.problems": "problems",
        "t2tp.trainer": "trainer",
    },
)
