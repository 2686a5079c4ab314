"""A process that is killed while it downloads, trains a vocabulary or encodes can be resumed."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from string import ascii_lowercase

import pytest

from t2tp import problems
from tests.files import files_in
from tests.problems.sources.archives import imdb_archive, served

DATAGEN = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_datagen"]
ROOT = Path(__file__).parents[3]


def kill_after(command, said, seconds):
    """Kills a process at a random time after it has printed a text; returns its output."""
    maker = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    lines = []
    for line in maker.stdout:
        lines.append(line)
        if said in line:
            break
    time.sleep(random.uniform(0, seconds))
    maker.send_signal(signal.SIGKILL)
    return "".join([*lines, maker.communicate()[0]])


def finish(command):
    subprocess.run(command, check=True, cwd=ROOT)


@pytest.mark.slow
def test_while_the_vocabulary_is_trained(tmp_path):
    draw = random.Random(0)
    for name in ("a.tsv", "b.en", "b.de"):
        words = ["".join(draw.choices(ascii_lowercase, k=draw.randint(2, 9))) for _ in range(2000)]
        sides = [" ".join(draw.choices(words, k=12)) for _ in range(2000)]
        ends = [f"\t{n}\n" if name == "a.tsv" else "\n" for n in range(2000)]
        (tmp_path / name).write_text("".join(map("".join, zip(sides, ends, strict=True))))
    name = "mixture:translate_tsv=0.8,translate_textfiles=0.2"
    options = f"translate_tsv.files={tmp_path}/a.tsv,inputs={tmp_path}/b.en"
    options += f",targets={tmp_path}/b.de"
    command = [*DATAGEN, f"--problem={name}", f"--problem_options={options}", "--vocab_size=1000"]
    directory = problems.find(name).directory("")
    problems.find(name, f"{options},vocab_size=1000").prepare(tmp_path / "whole")
    killed = [*command, f"--data_dir={tmp_path / 'killed'}"]
    assert "making a vocabulary" in kill_after(killed, "making a vocabulary", 0)
    assert not (tmp_path / "killed" / directory).exists()
    said = kill_after(killed, "making a vocabulary", 0.5)
    assert "resuming the interrupted work" in said
    finish(killed)
    whole, again = (files_in(tmp_path / each / directory) for each in ("whole", "killed"))
    assert again == whole


DOWNLOAD = """
import sys, time
from pathlib import Path
from t2tp import problems
from tests.problems.sources.archives import imdb_archive, served

def slowly(url):
    print("downloading", flush=True)
    time.sleep(1)
    return imdb_archive(url)

with served(slowly, Path(sys.argv[2])):
    problems.find("sentiment_imdb", "vocab_size=400").prepare(sys.argv[1])
"""


@pytest.mark.ci_only
@pytest.mark.slow
def test_while_a_dataset_is_downloaded_and_made(tmp_path):
    command = [sys.executable, "-c", DOWNLOAD, str(tmp_path / "killed"), str(tmp_path / "served")]
    with served(imdb_archive, tmp_path / "downloads"):
        problems.find("sentiment_imdb", "vocab_size=400").prepare(tmp_path / "whole")
    assert "Error" not in kill_after(command, "downloading", 3)
    finish(command)
    whole, again = (files_in(tmp_path / each / "sentiment_imdb") for each in ("whole", "killed"))
    assert again == whole
