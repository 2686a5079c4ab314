"""Gives each test process eight virtual CPU devices, for meshes of up to eight processors.

With `T2TP_TEST_GPU=1`, the machine's first GPU is split into eight devices instead (docs/gpu.md).
Otherwise TensorFlow sees no GPU.
"""

import gc
import itertools
import os
import signal
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from t2tp.processes import exact_environment
from t2tp.quiet import import_tensorflow

if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" and exact_environment.needs_isa():
    os.environ.setdefault(exact_environment.ISA_VARIABLE, exact_environment.ISA)

import hypothesis
import pytest
from absl import logging

# Programs that tests start keep compiled programs here, and not in the developer's own cache.
_CACHE = tempfile.TemporaryDirectory(prefix="t2tp-test-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

# Under nohup, or in the background of a script, processes start with SIGHUP or SIGINT ignored.
# Tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The duration of a hypothesis example depends on the machine, so examples have no deadline.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

NUM_DEVICES = 8
GPU_MEGABYTES = 1024  # of each of the eight virtual devices

LOGGER = logging.get_absl_logger()
HANDLERS, PROPAGATES, VERBOSITY = LOGGER.handlers[:], LOGGER.propagate, logging.get_verbosity()


# The files with the longest tests. They run first, so that parallel workers do not wait for one of
# them at the end.
LONG_FILES = (
    "tests/test_commands.py",
    "tests/huggingface/test_config_entries.py",
    "tests/trainer/run_dir/test_object_stores.py",
    "tests/trainer/inference/test_harness.py",
    "tests/trainer/processes/test_one_curve.py",
    "tests/object_store/test_mirror.py",
    "tests/trainer/processes/test_hosts.py",
    "tests/trainer/cli/test_t2tp_plan.py",
    "tests/pipeline/test_values.py",
    "tests/models/test_transformer_layouts.py",
    "tests/decoding/test_any_layout.py",
    "tests/huggingface/test_language_models.py",
    "tests/test_hparams_sets.py",
    "tests/trainer/cli/test_t2tp_tune.py",
    "tests/processes/test_processes.py",
    "tests/trainer/inference/test_litert.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--cases`, the option of `make test` and `make test-fast`."""
    parser.addoption(
        "--cases",
        choices=["all", "cover", "brief", "one"],
        default="all",
        help="which cases of a parametrized test to run. cover: cases that together have all values"
        " of each parameter (of three and more parameters, all pairs of values);"
        " one: the case in the middle; brief: one of the cases marked as slow, and of the others"
        " those of cover",
    )


@pytest.hookimpl(trylast=True)  # trylast: other options deselect tests first.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts long files to the front and deselects the cases that --cases leaves out."""
    order = {path: number for number, path in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))
    if os.environ.get("T2TP_TEST_GPU"):
        items[:] = [item for item in items if not item.get_closest_marker("cpu_only")]
    chosen = config.getoption("cases")
    if chosen == "all":
        return
    cases: dict[tuple[str, bool], list[pytest.Item]] = {}
    for item in items:
        # A test with a parameter `operation` counts as one test per operation.
        params = item.callspec.params if hasattr(item, "callspec") else {}
        test = item.nodeid.partition("[")[0] + params.get("operation", "")
        is_slow = item.get_closest_marker("slow") is not None
        takes_one = chosen == "one" or (chosen == "brief" and is_slow)
        cases.setdefault((test, takes_one), []).append(item)
    kept: set[pytest.Item] = set()
    for (_, takes_one), each in cases.items():
        kept |= {each[len(each) // 2]} if takes_one else _covering(each)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _covering(cases: list[pytest.Item]) -> set[pytest.Item]:
    """Returns cases that cover all values of each parameter.

    If there are three or more parameters, the cases cover all pairs of values.

    The search is greedy: the next case is the one that covers most of what is missing.
    """
    names = list(cases[0].callspec.params) if len(cases) > 1 else []
    if len(names) < 2:
        return set(cases)
    # A decorator that lists cases of several parameters gives all of them the same indices, so they
    # count as one axis.
    axes = {tuple(case.callspec.indices[name] for case in cases): name for name in names}
    is_grid = len(axes) > 2
    missing_of: dict[pytest.Item, set] = {}
    for case in cases:
        given = case.callspec.params
        values = {(name, repr(given[name])) for name in (axes.values() if is_grid else names)}
        missing_of[case] = set(itertools.combinations(sorted(values), 2 if is_grid else 1))
    kept: set[pytest.Item] = set()
    while missing_of:
        best = max(missing_of, key=lambda case: len(missing_of[case]))
        covered = missing_of.pop(best)
        if not covered:
            break
        kept.add(best)
        for missing in missing_of.values():
            missing -= covered
    return kept


def pytest_configure(config: pytest.Config) -> None:
    """Sets up the devices; with pytest-xdist, only in the workers, which run the tests."""
    if config.getoption("numprocesses", None):
        return
    gc.disable()
    _make_devices()


def pytest_collection_finish() -> None:
    """Excludes imported modules from garbage collection: they are large and never freed."""
    gc.freeze()
    gc.enable()


def _make_devices() -> None:
    import_tensorflow()
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_DEVICES)],
    )
    # One thread is what `t2tp.connect` sets for eight devices on up to 15 cores.
    tf.config.threading.set_intra_op_parallelism_threads(1)
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
        # As `t2tp.connect` does when it makes the devices.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(autouse=True)
def _log_as_at_the_start() -> None:
    """Undoes the settings of logging that a program has made for the whole process."""
    LOGGER.handlers[:], LOGGER.propagate = HANDLERS, PROPAGATES
    logging.set_verbosity(VERBOSITY)


@pytest.fixture(autouse=True, scope="session")
def _quiet_mesh_tensorflow() -> None:
    """Hides mesh-tensorflow's warning about each variable without an initializer."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes after a test what it registers, so that other tests do not find it."""
    from t2tp import registry

    for each in registry._registries.values():
        monkeypatch.setattr(each, "_entries", dict(each._entries))
