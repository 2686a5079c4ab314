"""For a fixed mesh, the number of processes and restarts change no bit of a run."""

import re

import pytest

from t2tp.checkpoint import last_finished
from t2tp.trainer.processes.local_processes import environments_of
from tests.trainer.processes import stopping_hooks
from tests.trainer.small_run import assert_same, flags
from tests.warm_processes import ended, started

STEPS, SAVE, DIE_AT = 6, 2, 5
# Each device has one thread, because the order of sums may depend on the number of threads.
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1"}

_STAGES = "layout=batch:data;layers:stage,num_hidden_layers=2"
_EXPERTS = (
    "num_experts=4,moe_every=1,d_model=16,d_ff=32,d_kv=8,num_heads=2,num_hidden_layers=1"
    ",max_length=32,batch_size=8"
)
# Model, mesh and hparams of each run, and its numbers of processes until the kill and afterwards.
CASES = [
    ("transformer_lm", "data:2;model:2", "layout=batch:data;heads:model", 2, 4),
    ("transformer_lm", "data:4", "zero_stage=3,recompute=layer,num_hidden_layers=3", 4, 1),
    ("transformer_lm", "stage:2;data:2", f"{_STAGES},microbatches=4,zero_stage=2", 2, 4),
    ("transformer_lm", "stage:2", f"{_STAGES},pipeline_schedule=1f1b,microbatches=4", 1, 2),
    ("transformer_moe", "data:4", f"{_EXPERTS},zero_stage=2", 4, 2),
]


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.parametrize(("model", "mesh", "hparams", "killed", "resumed"), CASES)
def test_a_kill_changes_no_bit(model, mesh, hparams, killed, resumed, tmp_path, data_dir):
    """Process `killed - 1` of `killed` dies; the run is started again on `resumed` processes."""
    hooks = stopping_hooks.make(tmp_path)

    def train(run: str, codes: list[int], **more: str) -> str:
        hparams_set = "transformer_moe_tiny" if "moe" in model else "transformer_lm_test"
        given = {"model": model, "hparams_set": hparams_set, "mesh_shape": mesh}
        given |= {"hparams": f"layer_prepostprocess_dropout=0.1,{hparams}", "train_steps": STEPS}
        given |= {"save_checkpoints_steps": SAVE, "t2t_usr_dir": hooks, "hooks": "stopping"}
        command = flags(tmp_path / run, data_dir, **given)
        environments, count = [{**ONE_THREAD, **more}], len(codes)
        if count > 1:
            environments = environments_of(count, None, environments[0], [])
        main = "t2tp.trainer.cli.programs:t2tp_trainer"
        number = len(list(tmp_path.glob("said*")))
        output = tmp_path / f"said{number}"
        return ended(started(main, [command] * count, environments, output), codes)[0]

    train("alone", [0])
    die_at = f"{killed - 1}:{DIE_AT}"
    said = train("run", [3] * (killed - 1) + [-9], DIE_AT=die_at)
    saved = last_finished(tmp_path / "run/checkpoints")
    assert saved.step in (DIE_AT - 1, DIE_AT - 1 - SAVE)
    if killed > 1:
        gone = rf"Process {killed - 1} of {killed} \(localhost:\d+\) is gone\."
        went_on = rf" The last finished checkpoint is {saved.path}, of step {saved.step}: start all"
        assert re.search(f"t2tp.*{gone}.*{went_on} processes again", said.splitlines()[-1]), said
    train("run", [0] * resumed)
    assert_same(tmp_path / "run", tmp_path / "alone", STEPS)
