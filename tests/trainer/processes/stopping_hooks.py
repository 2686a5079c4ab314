"""Makes a directory for `--t2t_usr_dir` whose hook ends or holds a process after a step."""

from pathlib import Path

_HOOKS = '''
import os, signal, time
from t2tp import registry
from t2tp.processes.process_spec import find_process_spec
from t2tp.trainer.hooks.hook import Hook

class Stopping(Hook):
    """Environment: DIE_AT=PROCESS:STEP kills that process; HOLD_AT=STEP holds every process."""

    def after_step(self, training, outputs):
        step = training.steps_done
        spec = find_process_spec()
        me = spec.process_id if spec else 0
        if os.environ.get("DIE_AT") == f"{me}:{step}":
            float(outputs["loss"])
            os.kill(os.getpid(), signal.SIGKILL)
        while os.environ.get("HOLD_AT") == str(step):
            time.sleep(0.05)

registry.register_hook("stopping")(lambda spec: Stopping())
'''


def make(directory: Path) -> Path:
    """Writes the directory and returns it."""
    own = directory / "stopping_hooks_dir"
    own.mkdir()
    (own / "stopping.py").write_text(_HOOKS)
    return own
