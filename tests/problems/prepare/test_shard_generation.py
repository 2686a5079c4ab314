"""Shards are the same if they are made by several processes, or in several attempts."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t2tp import problems, registry
from t2tp.problems.data.sample import GeneratedSamples, SkippedSampleError
from t2tp.problems.prepare import shard_generation
from t2tp.problems.user_dir import import_user_dir
from t2tp.trainer.cli import programs
from tests.files import limit_files
from tests.problems.prepare.few_digits import FewDigits, WatchedDigits
from tests.problems.prepare.own_pairs import files_of, prepare_until

NAME = "some_digits"
COMMAND = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_datagen", f"--problem={NAME}"]
OWN_PROBLEMS = Path(__file__).parent / "own_problems"
COMMAND += [f"--t2t_usr_dir={OWN_PROBLEMS}"]
import_user_dir(OWN_PROBLEMS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    FewDigits().prepare(directory, num_shards=6)
    return files_of(FewDigits(), directory)


@pytest.mark.slow
def test_the_number_of_workers_does_not_change_a_file(tmp_path, undisturbed):
    FewDigits().prepare(tmp_path, num_shards=6, num_workers=2)
    assert files_of(FewDigits(), tmp_path) == undisturbed
    assert len([name for name in undisturbed if name.startswith("train-")]) == 6 * 6


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_finished_shards_are_not_made_again(tmp_path, undisturbed, failure):
    prepare_until(FewDigits(), tmp_path, 400, failure, num_shards=6)
    with pytest.raises(FileNotFoundError, match="make the data of few_digits with"):
        FewDigits().check_prepared(tmp_path)
    left = {path.name: path.stat() for path in (tmp_path / ".few_digits.partial").glob("train-*")}
    assert len(left) == 2 * 6  # two shards of 166 or 167 samples, six files each
    FewDigits().prepare(tmp_path, num_shards=6)
    assert files_of(FewDigits(), tmp_path) == undisturbed
    for name, state in left.items():
        now = (FewDigits().directory(tmp_path) / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (state.st_ino, state.st_mtime_ns)


class Endless:
    """More samples than a stored permutation could hold."""

    def __len__(self):
        return 10**15

    def __getitem__(self, number):
        return {"number": number}


def test_the_first_samples_do_not_wait_for_the_order_of_all():
    samples = iter(shard_generation.ShuffledSamples(Endless()))
    numbers = {next(samples)["number"] for _ in range(10_000)}
    assert len(numbers) == 10_000 and max(numbers) > 10**14


@registry.register_problem
class DeadlyDigits(FewDigits):
    """A problem that kills a worker after 400 samples; every 100th training sample is bad."""

    dies_at = 400

    def samples(self, split, directory, tmp_dir):
        samples = super().samples(split, directory, tmp_dir)

        def read(number):
            if split == "train" and number % 100 == 0:
                raise ValueError("bad")
            return samples[number]

        return GeneratedSamples(len(samples), read)

    def encoder(self, directory):
        encode = super().encoder(directory)
        encoded = 0

        def encode_or_die(sample):
            nonlocal encoded
            encoded += 1
            if encoded == self.dies_at and multiprocessing.parent_process() is not None:
                os.kill(os.getpid(), signal.SIGKILL)
            return encode(sample)

        return encode_or_die


@pytest.mark.ci_only
@pytest.mark.slow
def test_killed_workers_change_no_file(tmp_path, caplog):
    """Unfinished shards of killed workers are made again; no bad sample is counted twice."""
    problem = DeadlyDigits()
    made = problem.prepare(tmp_path / "killed", num_shards=6, num_workers=2, max_bad_samples=10)
    assert "a worker process was killed" in caplog.text
    assert sum(sum(each.skipped.values()) for each in made.splits.values()) == 10
    problem.prepare(tmp_path / "undisturbed", num_shards=6, max_bad_samples=10)
    assert files_of(problem, tmp_path / "killed") == files_of(problem, tmp_path / "undisturbed")


@registry.register_problem
class FatalDigits(DeadlyDigits):
    """A problem whose workers are all killed at the first sample."""

    dies_at = 1


@pytest.mark.ci_only
@pytest.mark.slow
def test_workers_that_die_again_and_again_end_with_a_sentence(tmp_path):
    with pytest.raises(ChildProcessError) as raised:
        FatalDigits().prepare(tmp_path, num_shards=6, num_workers=2, max_bad_samples=10)
    said = str(raised.value)
    assert "killed 3 times" in said and "run again" in said and "--num_workers=2" in said


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "wanted"), [(1, 1), (99, 2)])
def test_no_more_workers_are_started_than_are_worth_it(tmp_path, num_workers, wanted):
    WatchedDigits().prepare(tmp_path, num_shards=6, num_workers=num_workers)
    encoders = [path.name for path in tmp_path.glob("encoder-*")]
    assert 1 <= len(encoders) <= wanted  # one may have finished before the other has started
    assert (encoders == [f"encoder-{os.getpid()}"]) == (num_workers == 1)


@registry.register_problem
class SlowDigits(WatchedDigits):
    """A problem whose samples take long to encode in this process, but not in workers."""

    def encoder(self, directory):
        encode = super().encoder(directory)

        def encode_slowly(sample):
            time.sleep(0.05 if multiprocessing.parent_process() is None else 0.0)
            return encode(sample)

        return encode_slowly


@pytest.mark.slow
def test_workers_are_started_after_the_samples_were_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_generation, "default_workers", lambda: 2)
    made = SlowDigits().prepare(tmp_path, num_shards=2, num_workers=None)
    assert made.splits["train"].examples == 1000
    assert {path.name for path in tmp_path.glob("encoder-*")} > {f"encoder-{os.getpid()}"}


def test_there_is_a_worker_for_each_core(monkeypatch):
    for cores, workers in ((1, 1), (8, 8), (200, 32)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, n=cores: set(range(n)))
        assert shard_generation.default_workers() == workers


def test_what_was_made_for_something_else_is_made_again(tmp_path):
    prepare_until(FewDigits(), tmp_path, 400, num_shards=6)
    assert FewDigits().prepare(tmp_path, num_shards=2).splits["train"].shards == 2
    assert len(list(FewDigits().directory(tmp_path).glob("train-*.targets"))) == 2


def test_skipped_samples_are_counted_by_their_reasons(tmp_path, monkeypatch, caplog):
    class Choosy(FewDigits):
        def encoder(self, directory):
            encode = super().encoder(directory)

            def choose(sample):
                if len(sample["inputs"]) > 30:
                    raise SkippedSampleError("too long")
                return encode(sample)

            return choose

    manifest = Choosy().prepare(tmp_path, num_shards=3)
    train = manifest.splits["train"]
    assert train.skipped["too long"] + train.examples == 1000
    assert f"train: {train.skipped['too long']} samples skipped: too long" in caplog.text
    monkeypatch.setattr(Choosy, "encoder", lambda self, directory: skip_all)
    with pytest.raises(ValueError, match=r"all samples of train of choosy .* 1,000 skipped \(no\)"):
        Choosy().prepare(tmp_path, overwrite=True)
    assert Choosy().check_prepared(tmp_path) == manifest


def skip_all(sample):
    raise SkippedSampleError("no")


def run(data_dir, *arguments, **options):
    return subprocess.run(
        [*COMMAND, f"--data_dir={data_dir}", *arguments], capture_output=True, text=True, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_full_disk_ends_with_a_sentence_and_making_goes_on_later(tmp_path, num_workers):
    arguments = ("--num_shards=20", f"--num_workers={num_workers}")
    # 400 samples of about 21 numbers of 2 bytes exceed the limit.
    full = run(tmp_path, *arguments, preexec_fn=lambda: limit_files(10_000))
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    assert "File too large: " in full.stderr.splitlines()[-1]
    assert "/train-" in full.stderr.splitlines()[-1]
    assert not (tmp_path / NAME).exists()
    problems.find(NAME).prepare(tmp_path, num_shards=20, num_workers=num_workers)
    problems.find(NAME).check_prepared(tmp_path)


def test_the_vocabulary_size_is_a_flag_and_inspect_shows_what_was_made(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("".join(f"one {i}\teins {i}\n" for i in range(100)))
    command = ["t2tp_datagen", "--problem=translate_tsv", f"--data_dir={tmp_path / 'data'}"]
    command += [f"--problem_options=files={tmp_path}/a.tsv"]
    assert programs.t2tp_datagen([*command, "--vocab_size=280"]) == 0
    assert "train: 94 examples" in capsys.readouterr().out
    assert len(problems.find("translate_tsv").vocabulary(tmp_path / "data")) == 280
    assert programs.t2tp_datagen([*command, "--inspect"]) == 0
    shown = capsys.readouterr().out
    assert "inputs: 'one " in shown and "targets: 'eins " in shown
    assert "on average" in shown and "padding in rows of a length" in shown
