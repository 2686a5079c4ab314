import pytest

from t2tp import checkpoint
from tests.checkpoint import samples


@pytest.fixture
def run(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, [samples.of_step(step)], {"seen": step * 10})
    return tmp_path


def names(run):
    return sorted(path.name for path in run.iterdir())


KEPT = [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (9, [1, 2, 3])]


@pytest.mark.parametrize(("number", "left"), KEPT)
def test_the_oldest_go(run, number, left):
    checkpoint.apply_retention(run, checkpoint.Retention(number))
    assert checkpoint.all_steps(run) == left
    assert len(names(run)) == len(left)


@pytest.mark.parametrize(
    ("policy", "message"), [((0,), "not 0"), ((-1,), "not -1"), ((1, 0), "every 0 hours")]
)
def test_what_cannot_be_kept_is_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        checkpoint.Retention(*policy)


def test_damaged_ones_do_not_count_and_stay(run):
    (run / "step-00000003" / "variables.index").unlink()
    checkpoint.apply_retention(run, checkpoint.Retention(1))
    assert names(run) == ["step-00000002", "step-00000003"]
    samples.assert_is_step(checkpoint.latest(run), 2)


def test_what_crashes_left_goes_but_not_what_may_be_a_save_going_on(run):
    for name in ("step-00000002.tmp", "step-00000004.tmp", "step-00000001.discarded"):
        (run / name).mkdir()
        (run / name / "file").touch()
    checkpoint.apply_retention(run, checkpoint.Retention(3))
    assert names(run) == ["step-00000001", "step-00000002", "step-00000003", "step-00000004.tmp"]


def test_other_peoples_files_stay(run):
    others = ["best", "step-3", "step-00000001.bak", "step-000000001", "events.out"]
    for name in others:
        (run / name).mkdir()
    checkpoint.apply_retention(run, checkpoint.Retention(1))
    assert names(run) == sorted([*others, "step-00000003"])


def test_a_directory_without_checkpoints_is_left_alone(tmp_path):
    checkpoint.apply_retention(tmp_path / "nowhere", checkpoint.Retention(1))
    assert not (tmp_path / "nowhere").exists()


def saved_at(run, monkeypatch, hours):
    """Saves a checkpoint at each hour and applies retention; returns the hours that are left."""
    for step, hour in enumerate(hours, start=1):
        monkeypatch.setattr("time.time", lambda: 3600.0 * hour)  # noqa: B023
        checkpoint.save(run, step, [samples.of_step(step)], {})
        checkpoint.apply_retention(run, checkpoint.Retention(2, every_n_hours=2.0))
    return [hours[step - 1] for step in checkpoint.all_steps(run)]


def test_the_oldest_and_one_every_so_many_hours_stay_besides(tmp_path, monkeypatch):
    hours = [10, 11, 11.9, 12.1, 13, 14, 15, 16.5, 17, 18]
    assert saved_at(tmp_path, monkeypatch, hours) == [10, 12.1, 15, 17, 18]


def test_of_equals_the_older_is_the_best_and_those_not_evaluated_do_not_count(tmp_path):
    for step, metrics in enumerate([None, {"loss": 1.0}, {"loss": 1.0}, {"other": 0.0}], start=1):
        checkpoint.save(tmp_path, step, [samples.of_step(step)], {}, metrics=metrics)
    checkpoint.apply_retention(
        tmp_path, checkpoint.Retention(1, best=checkpoint.BestMetric("loss", is_min=True))
    )
    assert checkpoint.all_steps(tmp_path) == [2, 4]


DAMAGED = ["{", "[]", pytest.param(10**5 * "[", id="nested"), "\xff", '"loss"', '{"loss": null}']


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_metrics_are_as_none(run, content):
    path = run / "step-00000002" / "metrics.json"
    path.write_text(content, "latin-1")
    assert checkpoint.read_metrics(path.parent) == {}
    checkpoint.apply_retention(
        run, checkpoint.Retention(1, best=checkpoint.BestMetric("loss", is_min=True))
    )
    assert checkpoint.all_steps(run) == [3]


@pytest.mark.parametrize("text", ["loss", "least:loss", "min:", ""])
def test_a_goal_says_which_way(text):
    with pytest.raises(ValueError, match="write min:METRIC or max:METRIC"):
        checkpoint.BestMetric.parse(text)


def test_a_metric_that_is_not_evaluated_names_the_nearest():
    with pytest.raises(LookupError, match=r"'los' is not evaluated: did you mean loss\?"):
        checkpoint.BestMetric.parse("min:los").value_of({"loss": 1.0, "accuracy": 1.0})
