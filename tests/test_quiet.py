import gc
import os

import pytest

from t2tp.quiet import quiet_import


def test_what_goes_to_file_descriptor_2_is_not_seen(capfd):
    with quiet_import():
        os.write(2, b"This binary is optimized for everything\n")
    os.write(2, b"seen\n")
    assert capfd.readouterr().err == "seen\n"


def test_it_is_shown_when_the_import_fails(capfd):
    with pytest.raises(ImportError, match="no such library"), quiet_import():
        os.write(2, b"libcudart is missing\n")
        raise ImportError("no such library")
    assert capfd.readouterr().err == "libcudart is missing\n"


def test_nobody_collects_garbage_meanwhile():
    with quiet_import():
        assert not gc.isenabled()
    assert gc.isenabled()
