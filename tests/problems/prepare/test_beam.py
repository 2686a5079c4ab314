"""Apache Beam makes the same shards as this process."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t2tp import problems, registry
from t2tp.problems.data.sample import BadSampleError
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.prepare.settings import BeamSettings
from t2tp.problems.sources.tfds_source import TfdsSource
from t2tp.problems.user_dir import import_user_dir
from tests.files import files_in

OWN_PROBLEMS = Path(__file__).parent / "own_problems"
import_user_dir(OWN_PROBLEMS)
DIRECT = BeamSettings("DirectRunner")
WORDS = [f"{a}{b}" for a in ("over", "under", "re", "") for b in ("take", "write", "go", "make")]


@pytest.fixture(scope="module", autouse=True)
def beam():
    pytest.importorskip("apache_beam")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Writes a directory with some text files."""
    directory = tmp_path_factory.mktemp("texts")
    draw = random.Random(1)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(1200)]
    (directory / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    (directory / "b.txt").write_text("".join(f"{line.upper()}\n" for line in lines))
    (directory / "a.tsv").write_text("".join(f"{line}\t{line.upper()}\n" for line in lines))
    records = [{"text": line, "kind": line.split()[0]} for line in lines]
    (directory / "a.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return directory


PROBLEMS = {
    "some_digits": "",
    "image_digits": "",
    "languagemodel_textfiles": "files={}/a.txt,documents=lines,vocab_size=300",
    "translate_tsv": "files={}/a.tsv,vocab_size=300",
    "text2class_records": "files={}/a.jsonl,inputs=text,targets=kind,vocab_size=300",
    "mixture:translate_tsv=1,translate_textfiles=1": (
        "files={0}/a.tsv,inputs={0}/a.txt,targets={0}/b.txt,vocab_size=300"
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_beam_makes_the_same_files(name, tmp_path, texts):
    problem = problems.find(name, PROBLEMS[name].format(texts))
    problem.prepare(tmp_path / "here", num_shards=5)
    problem.prepare(tmp_path / "beam", num_shards=5, beam=DIRECT)
    made = files_in(tmp_path / "beam")
    assert len([path for path in made if "train-" in path]) >= 5
    assert made == files_in(tmp_path / "here")


@registry.register_problem
class LanguagemodelPages(TfdsSource, LanguageModelProblem):
    """Texts of a dataset that TFDS itself makes by a Beam pipeline."""

    vocabulary_kind = "byte"

    def dataset_builder(self, directory, tmp_dir):
        from tests.problems.prepare.pages_builder import Pages

        return Pages(data_dir=tmp_dir / "tfds", file_format="array_record")


def test_a_dataset_that_is_a_pipeline_has_the_same_runner(tmp_path, monkeypatch):
    import apache_beam

    pipelines = []
    make = apache_beam.Pipeline.__init__

    def noted(self, runner=None, options=None, *args, **kwargs):
        pipelines.append((runner, options.get_all_options(drop_default=True)))
        make(self, runner, options, *args, **kwargs)

    monkeypatch.setattr(apache_beam.Pipeline, "__init__", noted)
    problem = problems.find("languagemodel_pages")
    beam = BeamSettings("DirectRunner", ["--direct_num_workers=2"])
    problem.prepare(tmp_path / "beam", num_shards=3, beam=beam)
    (of_dataset, its_options), *_ = pipelines
    assert of_dataset == "DirectRunner"
    assert its_options["direct_num_workers"] == 2
    problem.prepare(tmp_path / "here", num_shards=3)
    assert files_in(tmp_path / "beam") == files_in(tmp_path / "here")


def test_more_bad_samples_than_may_be_are_refused(tmp_path):
    """No shard alone has too many bad samples, but all shards together have."""
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"a {n}\tb {n}{chr(9) * (n % 50 == 0)}\n" for n in range(1000)))
    problem = problems.find("translate_tsv", f"files={path},vocab_size=280")
    with pytest.raises(BadSampleError, match="20 samples of translate_tsv are bad, and at most 19"):
        problem.prepare(tmp_path / "data", num_shards=5, max_bad_samples=19, beam=DIRECT)
    made = problem.prepare(tmp_path / "data", num_shards=5, max_bad_samples=20, beam=DIRECT)
    assert sum(sum(each.skipped.values()) for each in made.splits.values()) == 20


def test_processes_of_this_host_are_started_without_beam(tmp_path):
    beam = BeamSettings("DirectRunner", ["--direct_running_mode=multi_processing"])
    with pytest.raises(ValueError, match="leave out --beam_runner.* --num_workers"):
        problems.find("some_digits").prepare(tmp_path, num_shards=6, beam=beam)


def test_a_killed_pipeline_goes_on_with_what_was_finished(tmp_path):
    name = "some_digits"
    command = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_datagen", f"--problem={name}"]
    command.append(f"--t2t_usr_dir={OWN_PROBLEMS}")
    flags = [f"--data_dir={tmp_path / 'killed'}", "--num_shards=30", "--beam_runner=DirectRunner"]
    with subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL) as process:
        partial = tmp_path / "killed" / f".{name}.partial"
        while not len(list(partial.glob("train-*.json"))) > 2:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed" / name).exists()
    finished = {path.name: path.stat().st_ino for path in partial.glob("train-*.json")}
    ended = subprocess.run([*command, *flags], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    problems.find(name).prepare(tmp_path / "here", num_shards=30)
    assert files_in(tmp_path / "killed" / name) == files_in(tmp_path / "here" / name)
    made = tmp_path / "killed" / name
    assert {each: (made / each).stat().st_ino for each in finished} == finished
