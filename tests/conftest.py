"""All tests of a process share its CPU, which is eight virtual devices: meshes of up to eight.

With `T2TP_TEST_GPU=1` the machine's first GPU is split into eight instead (docs/gpu.md); otherwise
GPUs are not looked at.
"""

from __future__ import annotations

import gc
import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import pytest
from absl import logging

# Under nohup, or in the background of a script, Python and its children are begun with SIGINT
# ignored; tests interrupt both.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about us.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

NUM_DEVICES = 8
GPU_MEGABYTES = 2048  # of each of the eight

LOGGER = logging.get_absl_logger()
HANDLERS, PROPAGATES, VERBOSITY = LOGGER.handlers[:], LOGGER.propagate, logging.get_verbosity()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option of `make test-fast`."""
    parser.addoption(
        "--one-case", action="store_true", help="of a parametrized test, run the case in the middle"
    )


@pytest.hookimpl(trylast=True)  # Of the cases that other options have left.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --one-case, leaves one case of each test."""
    if not config.getoption("one_case"):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {each[len(each) // 2] for each in cases.values()}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_configure(config: pytest.Config) -> None:
    """Sets up the devices; imports TensorFlow, but not where others run the tests."""
    if config.getoption("numprocesses", None):
        return
    gc.disable()
    _make_devices()


def pytest_collection_finish() -> None:
    """Excludes what was imported from garbage collection: it stays, and there is a lot of it."""
    gc.freeze()
    gc.enable()


def _make_devices() -> None:
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_DEVICES)],
    )
    if os.environ.get("T2TP_TEST_GPU"):
        card = tf.config.list_physical_devices("GPU")[0]
        tf.config.set_visible_devices([card], "GPU")
        tf.config.set_logical_device_configuration(
            card, [tf.config.LogicalDeviceConfiguration(GPU_MEGABYTES) for _ in range(NUM_DEVICES)]
        )
        tf.config.experimental.enable_tensor_float_32_execution(False)
        tf.config.experimental.enable_op_determinism()
    else:
        tf.config.set_visible_devices([], "GPU")
        # A program runs only a few steps here, for which Grappler takes as long as all the rest of
        # TensorFlow to get ready. The programs that tests start as processes of their own have it.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(autouse=True)
def _log_as_at_the_start() -> None:
    """The programs choose what is logged, and how, for their whole process."""
    LOGGER.handlers[:], LOGGER.propagate = HANDLERS, PROPAGATES
    logging.set_verbosity(VERBOSITY)


@pytest.fixture(autouse=True)
def _joint_programs_are_of_cpus(request: pytest.FixtureRequest) -> None:
    if os.environ.get("T2TP_TEST_GPU") and request.node.get_closest_marker("joint"):
        pytest.skip("only the programs of virtual CPUs become one")


@pytest.fixture(autouse=True, scope="session")
def _quiet_mesh_tensorflow() -> None:
    """mesh-tensorflow warns of every variable without an initializer."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
