"""Runs in a store on loopback: killed anywhere, they resume byte for byte."""

import itertools
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from t2tp.checkpoint import Checkpoint
from t2tp.trainer.cli import programs
from tests.store_server import SECRET, StoreServer
from tests.trainer.command import call
from tests.trainer.small_run import flags
from tests.warm_processes import WarmProcess, ended, started, tf_configs
from tools.page_commands import commands

pytestmark = pytest.mark.slow

STEPS = 12
TINY = "--hparams=batch_size=8,d_model=16,d_ff=16,num_heads=2,d_kv=8,num_hidden_layers=1"
MAIN = "tests.trainer.run_dir.impatient:train"


def command(output_dir: object, data_dir: object, **changes: object) -> list[str]:
    changes = {"save_checkpoints_steps": 2, "keep_checkpoint_max": 2, **changes}
    return flags(output_dir, data_dir, train_steps=STEPS, **changes)


def in_store(server: StoreServer, to: Path) -> dict[int, dict[str, bytes]]:
    """Downloads the run; checks that each visible checkpoint is whole; returns files by step."""
    files = server.files()
    visible = files.glob("bucket/run/checkpoints/*/FINISHED")
    steps = {}
    for marker in visible:
        directory = to / Path(marker).parent.name
        files.get(str(Path(marker).parent), str(directory), recursive=True)
        opened = Checkpoint(directory)
        opened.verify()
        steps[opened.step] = {p.name: p.read_bytes() for p in directory.glob("variables.*")}
    return steps


def killer(process: WarmProcess, requests: int) -> Callable[[str, str], None]:
    """Returns a fault of the store: a request kills the process."""
    count = itertools.count(1)

    def kill(method: str, path: str) -> None:
        if next(count) == requests:
            process.signal(signal.SIGKILL)

    return kill


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> dict[str, bytes]:
    """Trains a run in a directory, and returns its variables after all steps."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    with WarmProcess(MAIN, command(run, data_dir), {}, run.with_name("said")) as trainer:
        assert trainer.wait() == 0, trainer.err.read_text()
    directory = run / f"checkpoints/step-{STEPS:08d}"
    return {path.name: path.read_bytes() for path in directory.glob("variables.*")}


@pytest.mark.ci_only
@pytest.mark.parametrize("kills", [3, 10])
def test_kills_at_requests_change_no_byte(server, tmp_path, data_dir, undisturbed, kills):
    """Kills the trainer at requests; the run resumes here or, from the store, on another host."""
    cache = tmp_path / "host"
    for number in range(kills + 1):
        if random.random() < 0.5:
            cache = tmp_path / f"host-{number}"
        environment = server.environment(cache)
        arguments = command("s3://bucket/run", data_dir)
        with WarmProcess(MAIN, arguments, environment, tmp_path / f"said-{number}") as trainer:
            if number < kills:
                server.fault = killer(trainer, random.choice([5, 15, 30, 60]))
            code = trainer.wait()
            server.fault = lambda method, path: None
            assert code in (0, -signal.SIGKILL), trainer.err.read_text()
            steps = in_store(server, tmp_path / f"seen-{number}")
    assert code == 0
    assert sorted(steps) == [STEPS - 2, STEPS]
    assert steps[STEPS] == undisturbed


@pytest.mark.ci_only
def test_two_processes_train_in_a_store_and_one_goes_on_elsewhere(server, tmp_path, data_dir):
    two = [server.environment(tmp_path / "host") | config for config in tf_configs(2)]
    arguments = command("s3://bucket/run", data_dir)
    half = [each.replace(f"steps={STEPS}", "steps=6") for each in arguments]
    ended(started(MAIN, [half, half], two, tmp_path / "said"), [0, 0])
    seen = in_store(server, tmp_path / "seen")
    assert sorted(seen) == [4, 6]
    size = sum(len(content) for name, content in seen[6].items() if ".data-" in name)
    server.sent.clear()
    environment = server.environment(tmp_path / "elsewhere")
    with WarmProcess(MAIN, arguments, environment, tmp_path / "said_alone") as trainer:
        assert trainer.wait() == 0, trainer.err.read_text()
        assert "resuming from the checkpoint of step 6" in trainer.err.read_text()
    sent = sum(count for path, count in server.sent.items() if ".data-" in path)
    assert 0 < sent <= 1.1 * size
    assert in_store(server, tmp_path / "seen_at_the_end").keys() == {STEPS - 2, STEPS}


@pytest.mark.ci_only
def test_the_page_s_commands_work_and_none_keeps_credentials(server, tmp_path, monkeypatch, capfd):
    less = {"--train_steps=1000": ["--train_steps=2", "--save_checkpoints_steps=1", TINY]}
    for number, (name, *words) in enumerate(commands("docs/object_stores.md")):
        monkeypatch.setenv("T2TP_CACHE", str(tmp_path / f"host-{number}"))
        program = [name, *(each for word in words for each in less.get(word, [word]))]
        assert getattr(programs, name)(program) == 0
    said = capfd.readouterr()
    assert '{"checkpoint": "s3://bucket/run/checkpoints/step-00000002", "step": 2' in said.out
    run, average, again = (f"s3://bucket/{name}" for name in ("run", "average", "again"))
    two = {"num_last_checkpoints": 2, "output_path": average}
    assert call("t2tp_avg_checkpoints", output_dir=run, **two) == 0
    assert call("t2tp_inspect_checkpoint", average, run) == 1
    assert call("t2tp_trainer", config=f"{run}/run.yaml", output_dir=again, train_steps=1) == 0
    said_last = capfd.readouterr()
    contents = [each.encode() for each in (*said, *said_last)]
    contents += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    contents += server.files().cat(server.files().find("bucket")).values()
    assert not any(SECRET.encode() in content for content in contents)


REFUSALS = [("AccessDenied", "as access is refused"), ("NoSuchBucket", "there is no such bucket")]


@pytest.mark.parametrize(("code", "sentence"), REFUSALS)
def test_a_store_that_refuses_is_told_before_any_work(server, data_dir, capfd, code, sentence):
    server.fault = lambda method, path: ("403 Forbidden", code)
    arguments = ["t2tp_trainer", *command("s3://bucket/run", data_dir)]
    assert programs.t2tp_trainer(arguments) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("t2tp_trainer: s3://bucket/run cannot be read") and sentence in said
