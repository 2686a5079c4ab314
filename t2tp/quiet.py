"""Imports TensorFlow without its output and without Keras.

While TensorFlow is imported, its C++ code writes lines about CPU instructions and GPU libraries to
file descriptor 2. No setting disables them: TensorFlow reads the log level only afterwards.
"""

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator

from absl import logging

from t2tp.garbage_collection import without_garbage_collection

# The module that TensorFlow imports last, if it can. Until `tf.keras` is used, Keras only costs 40%
# of the time of `import tensorflow`.
_KERAS = "keras.src.optimizers"


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Imports modules that import TensorFlow: without its output, and `tf.keras` on first use.

    The modules themselves cannot import Keras.
    """
    with quiet_stderr(), _without_keras():
        yield


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    if "tensorflow" in sys.modules or _KERAS in sys.modules:
        yield
        return
    # An import of a module that is None raises ImportError, which TensorFlow expects.
    sys.modules[_KERAS] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_KERAS]


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Captures file descriptor 2, and shows the output only if an exception is raised.

    Afterwards TensorFlow's C++ code logs at TF_CPP_MIN_LOG_LEVEL. By default it logs only fatal
    errors, because other errors are raised as exceptions.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held_back, without_garbage_collection():
        screen = os.dup(2)
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            held_back.seek(0)
            os.write(screen, held_back.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(screen, 2)
            os.close(screen)


def import_tensorflow() -> None:
    """Imports TensorFlow without its messages; the first function that a worker process calls."""
    with quiet_import():
        importlib.import_module("tensorflow")


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Suppresses messages and warnings of `absl.logging` inside the context."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
