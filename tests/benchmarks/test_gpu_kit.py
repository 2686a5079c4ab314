"""The stages that are measured on a GPU, tried at toy sizes on the CPU."""

import gzip
import json
import subprocess
import sys

import pytest

KIT = [sys.executable, "benchmarks/gpu/run.py", "--toy"]


def run(*arguments):
    return subprocess.run([*KIT, *arguments], capture_output=True, text=True)


@pytest.mark.ci_only
@pytest.mark.slow
def test_a_stage_stores_its_figures_and_the_optimized_program(tmp_path):
    stored, artifacts = tmp_path / "figures.json", tmp_path / "artifacts"
    done = run("--stages=loops", f"--json={stored}", f"--artifacts={artifacts}")
    assert done.returncode == 0, done.stderr
    (figures,) = json.loads(stored.read_text())["figures"].values()
    assert figures["tokens_per_second"] > 0 and len(figures["longest_ms"]) == 30
    (hlo,) = artifacts.glob("loops*.hlo.txt.gz")
    assert '"known_trip_count":{"n":"8"}' in gzip.decompress(hlo.read_bytes()).decode()


def test_stages_that_do_not_fit_are_named_and_unknown_ones_refused(tmp_path):
    done = run("--stages=plain,loops", "--seconds=1", f"--json={tmp_path / 'none.json'}")
    assert done.returncode == 0 and done.stdout.strip() == "no GPU: toy sizes"
    assert [line.split(",")[0] for line in done.stderr.splitlines()] == [
        "plain: left out",
        "loops: left out",
    ]
    assert "unknown stages looops; there are plain, " in run("--stages=looops").stderr
