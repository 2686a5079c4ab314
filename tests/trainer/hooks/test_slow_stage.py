"""The stage that all other stages wait for is reported once."""

from t2tp.trainer.hooks.json_log import JsonLog
from t2tp.trainer.hooks.slow_stage import SlowStage
from tests.trainer.hooks.events import read_log


def warned(tmp_path, idle_by_step: list[list[float]]) -> list[dict]:
    log = JsonLog(tmp_path / "log.jsonl")
    watch = SlowStage(log)
    for step, idle in enumerate(idle_by_step, 1):
        shares = {f"pipeline_idle_share_stage_{i}": x for i, x in enumerate(idle)}
        watch.report(step, {"loss": 1.0, "pipeline_idle_share": 0.3, **shares})
    path = tmp_path / "log.jsonl"
    return read_log(path) if path.exists() else []


def test_a_stage_that_computes_longer_is_named_once(tmp_path, caplog):
    (entry,) = warned(tmp_path, [[0.5, 0.1, 0.5]] * 5)
    assert entry["stage"] == 1
    assert entry["step"] == 3
    assert abs(entry["ratio"] - 1.8) < 1e-9
    assert "Stage 1 of 3 computes 1.80 times as long" in caplog.text


def test_a_disturbed_step_and_stages_alike_are_not(tmp_path):
    alike = [0.2, 0.22, 0.25]
    assert warned(tmp_path, [alike, [0.7, 0.1, 0.7], alike, alike, alike]) == []


def test_a_run_without_stages_has_nothing_to_name(tmp_path):
    assert warned(tmp_path, [[]] * 4) == []
