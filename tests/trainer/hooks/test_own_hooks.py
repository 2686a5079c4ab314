"""A user's own hooks, from `--t2t_usr_dir`."""

import json

HOOK = """
import json, pathlib
from t2tp import registry
from t2tp.trainer.hooks.hook import Hook

class Stopping(Hook):
    def __init__(self, spec):
        self.file = pathlib.Path(spec.config.output_dir, "hook.json")

    def after_step(self, training, outputs):
        self.file.write_text(json.dumps([training.steps_done, float(outputs["loss"])]))
        if training.steps_done == 2:
            training.stop_reason = "two are enough"

registry.register_hook("stopping_at_two")(Stopping)
"""


def test_a_hook_from_the_users_directory(trainer, tmp_path, capfd):
    directory = tmp_path / "hooks_for_a_test"
    directory.mkdir()
    (directory / "stopping.py").write_text(HOOK)
    flags = {"schedule": "train", "t2t_usr_dir": directory}
    assert trainer(hooks="stopping_at_three", **flags) == 2
    assert "did you mean stopping_at_two?" in capfd.readouterr().err
    assert trainer(hooks="stopping_at_two", train_steps=9, **flags) == 0
    step, loss = json.loads((tmp_path / "run/hook.json").read_text())
    assert step == 2 and loss > 0
    assert (tmp_path / "run/checkpoints/step-00000002").is_dir()
