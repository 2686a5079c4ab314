"""If a file of a run is damaged in any way, each program works or says why it does not.

The cases are files x faults x programs. By default, a sample of the cases runs; with
`T2TP_SPOILT_CASES=all`, all cases run.
"""

import hashlib
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer import small_run
from tests.trainer.command import call

STEP = "checkpoints/step-00000002"
# The files without which a checkpoint is invalid.
PARTS = [
    f"{STEP}/{name}"
    for name in ("FINISHED", "variables.data-00000-of-00001", "variables.index", "metadata.json")
]
FILES = [
    *PARTS,
    f"{STEP}/metrics.json",
    STEP,
    "checkpoints",
    "run.yaml",
    "heartbeat.json",
    "run.lock",
    "log.jsonl",
    "layout.html",
    "eval/eval.jsonl",
    "eval",
    "events",
    "eval/events",
]
# Training rewrites these, or adds to them.
WRITTEN = (
    *("run.yaml", "heartbeat.json", "run.lock", "log.jsonl", "eval.jsonl"),
    *("metrics.json", "layout.html"),
)


def _seal_newer(path: Path, other: Path) -> None:
    """Writes a file of a newer format, as a later version of t2tp might."""
    fields = {"format": 2}
    if path.name == "FINISHED":
        fields = json.loads(path.read_bytes().rpartition(b"}")[0] + b"}") | fields
    body = json.dumps(fields, indent=1).encode()
    path.write_bytes(body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n")


def _replace(path: Path, make: Callable[[], object]) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make()


def _write(content: bytes) -> Callable[[Path, Path], None]:
    return lambda path, other: _replace(path, lambda: path.write_bytes(content))


def _link(target: str | None) -> Callable[[Path, Path], None]:
    return lambda path, other: _replace(path, lambda: path.symlink_to(target or path))


FAULTS: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda path, other: _replace(path, lambda: None),
    "truncated": lambda path, other: os.truncate(path, path.stat().st_size // 2),
    "empty": _write(b""),
    "random bytes": lambda path, other: path.write_bytes(random.Random(0).randbytes(500)),
    "of a newer format": _seal_newer,
    "of another run": lambda path, other: shutil.copyfile(other, path),
    "a directory": lambda path, other: _replace(path, path.mkdir),
    "a link to itself": _link(None),
    "a link to nowhere": _link("nowhere"),
    "a failing disk": _link("/proc/self/mem"),
    "a list": _write(b"[1]\n"),
    "not UTF-8": _write(b'{"\xff": 1}\n'),
}
# The faults that also apply to directories.
OF_DIRECTORIES = ("missing", "empty", "a link to itself", "a link to nowhere", "a list")


@dataclass(frozen=True)
class Place:
    """The directories of a case.

    Attributes:
      run: directory of the damaged run.
      data_dir: directory of the problem's data.
      elsewhere: directory for other files.
    """

    run: Path
    data_dir: Path
    elsewhere: Path

    def call(self, program: str, **flags: object) -> int:
        """Runs a program that reads the run."""
        return call(program, output_dir=self.run, data_dir=self.data_dir, **flags)


# Flags of a training that reads and writes all files of a run.
TRAINING = {
    "schedule": "train_and_evaluate",
    "eval_steps": 1,
    "train_steps": 3,
    "keep_best_metric": "min:loss",
    "eval_early_stopping_steps": 100,
}
PROGRAMS: dict[str, Callable[[Place], int]] = {
    "train": lambda at: at.call("t2tp_trainer", log_json=at.run / "log.jsonl", **TRAINING),
    "evaluate": lambda at: at.call("t2tp_trainer", schedule="evaluate", eval_steps=1),
    "explain": lambda at: at.call("t2tp_trainer", schedule="train", explain_layout=True),
    "t2tp_eval": lambda at: at.call("t2tp_eval", eval_steps=1),
    "t2tp_decoder": lambda at: at.call("t2tp_decoder", score_file=at.elsewhere / "lines.txt"),
    "t2tp_exporter": lambda at: at.call("t2tp_exporter", export_dir=at.elsewhere / "export"),
    "t2tp_avg_checkpoints": lambda at: call(
        "t2tp_avg_checkpoints",
        output_dir=at.run,
        num_last_checkpoints=2,
        output_path=at.elsewhere / "averaged",
    ),
    "t2tp_inspect_checkpoint": lambda at: call("t2tp_inspect_checkpoint", at.run),
}

CASES = [
    (file, fault, program)
    for file, fault, program in itertools.product(FILES, FAULTS, PROGRAMS)
    if fault in OF_DIRECTORIES or file not in (STEP, "checkpoints", "eval")
]

# The programs that read a file. For all other programs, the run is not damaged.
_ALL = set(PROGRAMS)
_TRAIN = {"train"}
_EVALUATE = {"train", "evaluate"}
READERS = {
    **dict.fromkeys(PARTS, _ALL - {"explain"}),
    **dict.fromkeys([STEP, "checkpoints"], _ALL),
    "run.yaml": _ALL - {"t2tp_inspect_checkpoint"},
    **dict.fromkeys([f"{STEP}/metrics.json", "eval/eval.jsonl", "eval", "eval/events"], _EVALUATE),
    **dict.fromkeys(["heartbeat.json", "run.lock", "log.jsonl", "events"], _TRAIN),
    "layout.html": {"explain"},
}


def sampled(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Returns cases in which all files, faults and programs occur about equally often.

    Only cases whose program reads the file are sampled. With `T2TP_SPOILT_CASES=all`, all cases are
    returned instead, but none for seed 0.
    """
    if os.environ.get("T2TP_SPOILT_CASES") == "all":
        return CASES if seed else []
    read = [case for case in CASES if case[2] in READERS[case[0]]]
    shuffled = random.Random(seed).sample(read, len(read))
    seen: dict[object, int] = {}
    chosen = []
    while len(chosen) < count:
        case = min(
            shuffled, key=lambda case: sum(seen.get(each, 0) for each in (*case, case, case[:2]))
        )
        chosen.append(case)
        for each in (*case, case, case[:2]):
            seen[each] = seen.get(each, 0) + 1
    return chosen


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> list[Path]:
    """Trains two runs of two steps, which differ only in their random numbers."""
    directories = [tmp_path_factory.mktemp("runs") / name for name in ("one", "other")]
    more = {"train_steps": 2, "save_checkpoints_steps": 1, "local_eval_frequency": 1}
    more |= {"schedule": None, "eval_steps": 1, "hparams": None, "mesh_shape": None}
    for seed, directory in enumerate(directories):
        own = {"random_seed": seed, "log_json": directory / "log.jsonl"}
        assert call("t2tp_trainer", *small_run.flags(directory, data_dir, **more, **own)) == 0
        (directory / "layout.html").write_text("<html>")
        for events in (directory, directory / "eval"):
            (event_file,) = events.glob("events.out.tfevents.*")
            event_file.rename(events / "events.out.tfevents.1.host.1.0.v2")
    return directories


def in_run(run: Path, name: str) -> Path:
    """Returns the path of a file of FILES."""
    path = run / name
    return path.with_name("events.out.tfevents.1.host.1.0.v2") if path.name == "events" else path


def contents(directory: Path) -> dict[Path, bytes | Path]:
    """Returns the bytes of all files and the targets of all links in a directory."""
    found: dict[Path, bytes | Path] = {}
    for path in directory.rglob("*"):
        if path.is_symlink():
            found[path] = path.readlink()
        elif path.is_file():
            found[path] = path.read_bytes()
    return found


def assert_nothing_is_lost(before: dict[Path, bytes | Path], run: Path) -> None:
    """Checks that no file is lost; a damaged checkpoint may be in a directory of another name."""
    after = contents(run)
    for path, content in before.items():
        moved = [
            run / "checkpoints" / damaged.name / path.relative_to(run / STEP)
            for damaged in (run / "checkpoints").glob("step-00000002.damaged*")
            if path.is_relative_to(run / STEP)
        ]
        kept = [after.get(each) for each in (path, *moved)]
        assert content in kept or path.name in WRITTEN, path


SLOW_CASES = [pytest.param(case, marks=pytest.mark.slow) for case in sampled(20, 1)]


@pytest.mark.parametrize("case", [*sampled(6, 0), *SLOW_CASES], ids=", ".join)
def test_damaged_files(case, runs, data_dir, tmp_path, capfd):
    """Damages a file of a copy of a run, and lets a program read it."""
    file, fault, program = case
    run, other = tmp_path / "run", runs[1]
    shutil.copytree(runs[0], run)
    for path in (run / "run.yaml", run / "log.jsonl"):  # They contain the run's path.
        path.write_text(path.read_text().replace(str(runs[0]), str(run)))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/lines.txt").write_text("import codecs\n")
    FAULTS[fault](in_run(run, file), in_run(other, file))
    before = contents(run)
    capfd.readouterr()
    code = PROGRAMS[program](Place(run, data_dir, tmp_path / "elsewhere"))
    said = capfd.readouterr().err
    assert code in (0, 2), said
    assert "Traceback" not in said
    if code == 2:
        name = program if program.startswith("t2tp_") else "t2tp_trainer"
        sentences = [line for line in said.splitlines() if line.startswith(f"{name}: ")]
        assert len(sentences) == 1, said
        assert said.splitlines()[-1] == sentences[0], said
    elif file in PARTS and program not in ("explain", "t2tp_inspect_checkpoint"):
        assert "step-00000002" in said, said
    assert_nothing_is_lost(before, run)
