"""mesh-tensorflow's own `ops_test` and `layers_test` pass on our engine, on any mesh."""

import unittest

import pytest

from tests.lowering import mesh_tensorflow_suite

MODULES = ["ops_test", "layers_test"]


def make_cases():
    """Pairs each test with the mesh it asks for, and with others if it lowers a graph."""
    for name in MODULES:
        for mesh_shape in (None, "a:2;b:2;c:2"):
            module = mesh_tensorflow_suite.load(name, mesh_shape)
            for case_type in mesh_tensorflow_suite.test_cases(module):
                for case in unittest.defaultTestLoader.loadTestsFromTestCase(case_type):
                    if mesh_shape is None or mesh_tensorflow_suite.lowers_a_graph(case):
                        test_id = f"{name}-{case._testMethodName}-{mesh_shape or 'as it is'}"
                        yield pytest.param(case, id=test_id)


@pytest.mark.parametrize("case", make_cases())
def test_passes(case):
    result = unittest.TestResult()
    case(result)
    assert result.testsRun == 1
    for _, trace in result.errors + result.failures:
        pytest.fail(trace)
