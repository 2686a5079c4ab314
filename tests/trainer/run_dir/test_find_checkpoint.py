import pytest

from t2tp.checkpoint import UnusableCheckpointError
from t2tp.trainer.run_dir.find_checkpoint import find

NAMES = ["", "checkpoints", "checkpoints/step-00000010", "checkpoints/step-00000010/variables"]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_found_by_any_of_its_names(trained_run, name):
    assert find(str(trained_run / name)).step == 10


def test_where_no_checkpoint_is_found_the_path_is_named(tmp_path):
    (tmp_path / "empty/checkpoints").mkdir(parents=True)
    for path, what in {"none": "does not exist", "empty": "holds no finished checkpoint"}.items():
        with pytest.raises(FileNotFoundError, match=f"{path} {what}"):
            find(str(tmp_path / path))
    with pytest.raises(UnusableCheckpointError, match="is not a checkpoint"):
        find(str(tmp_path))
