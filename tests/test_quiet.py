import gc
import os

import pytest

from t2tp.quiet import quiet_import
from tests.python_code import run_code


def test_descriptor_2_is_not_seen_and_nobody_collects_garbage(capfd):
    with quiet_import():
        assert not gc.isenabled()
        os.write(2, b"This binary is optimized for everything\n")
    assert gc.isenabled()
    os.write(2, b"seen\n")
    assert capfd.readouterr().err == "seen\n"


def test_it_is_shown_when_the_import_fails(capfd):
    with pytest.raises(ImportError, match="no such library"), quiet_import():
        os.write(2, b"libcudart is missing\n")
        raise ImportError("no such library")
    assert capfd.readouterr().err == "libcudart is missing\n"


def test_tensorflow_comes_without_keras_until_it_is_used():
    run_code(
        "import sys; from t2tp.quiet import import_tensorflow; import_tensorflow()\n"
        "assert 'keras' not in sys.modules\n"
        "import tensorflow as tf; from tensorflow.keras.layers import Dense\n"
        "import keras; assert Dense is keras.layers.Dense is tf.keras.layers.Dense\n"
        "assert tf.optimizers.SGD is keras.optimizers.SGD"
    )


def test_a_training_needs_no_keras(tmp_path):
    """Its import would take a quarter of the time to the first step."""
    run_code(
        "import sys; sys.modules['keras'] = None  # An import of it raises an error.\n"
        "from t2tp.quiet import import_tensorflow; import_tensorflow()\n"
        "from pathlib import Path; from tests.trainer import trained_runs\n"
        "few = {'train_steps': 1, 'schedule': 'train_and_evaluate'}\n"
        "trained_runs.train(Path(sys.argv[1]), trained_runs.TEXTS, **few)",
        tmp_path,
    )
