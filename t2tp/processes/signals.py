"""Signals while libraries are imported and TensorFlow starts."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def sigint_ends() -> Iterator[None]:
    """Lets SIGINT end this process at once, inside the context, unless somebody handles it.

    A KeyboardInterrupt would be lost in a callback from C++, or wait until TensorFlow has started.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not in_main_thread:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
