"""Keeps TensorFlow's first lines off the screen.

TensorFlow's C++ writes lines about CPU instructions and GPU libraries to file descriptor 2 while it
is imported, before it has read any log level, so no setting can turn them off.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Holds back what is written to file descriptor 2, and shows it only if an exception leaves.

    Afterwards TensorFlow's C++ code writes what TF_CPP_MIN_LOG_LEVEL says; by default, only what
    ends the program: errors come as exceptions, and the rest is about how kernels were built.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held_back:
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
