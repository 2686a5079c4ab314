"""Models are downloaded by their name on the Hub, from a server of the tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from t2tp.checkpoint import latest
from tests.huggingface import our_models
from tests.huggingface.hub_server import COMMIT, serving
from tests.huggingface.tiny_files import write_tiny_gpt2

# Converts each model to a directory of its own, all in one process.
SCRIPT = """
import sys
from t2tp.trainer.cli.programs import t2tp_convert
for number, name in enumerate(sys.argv[2:]):
    output_dir = f"--output_dir={sys.argv[1]}/{number}"
    code = t2tp_convert(["t2tp_convert", f"--from_hf={name}", output_dir])
    print(name, code, file=sys.stderr)
"""
SMALL_CHUNKS = """
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 1000
"""
SECRET = "hf_thisIsNobodysToken"


def convert(directory: Path, endpoint: str, *names: str, code: str = "") -> list[str]:
    """Converts models; returns the line printed for each model."""
    directory.mkdir()
    made = subprocess.run(
        [sys.executable, "-c", code + SCRIPT, str(directory), *names],
        env=os.environ
        | {"HF_ENDPOINT": endpoint, "HF_HOME": str(directory.parent / "home"), "HF_TOKEN": SECRET},
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    assert SECRET not in made.stdout + made.stderr
    return [line for line in made.stderr.splitlines() if line.startswith(("t2tp_convert:", *names))]


@pytest.mark.slow
@pytest.mark.ci_only
def test_a_model_is_downloaded_once_with_the_files_it_needs(tmp_path):
    pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")
    source, plain = tmp_path / "source", tmp_path / "plain"
    write_tiny_gpt2(source, n_embd=64)
    unused = ("pytorch_model.bin", "README.md", "original/model.safetensors", "flax.msgpack")
    for name in (*unused, "generation_config.json"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("{}")
    write_tiny_gpt2(plain)
    (plain / "config.json").write_text('{"model_type": "gpt9"}')
    models = {"org/tiny": source, "org/plain": plain, "org/gated": (403, "GatedRepo")}
    models |= {"org/private": (401, "RepoNotFound"), "org/down": (500, ""), "org/no": (403, "")}
    names = ["org/tiny", "org/tiny@main", f"org/tiny@{COMMIT}", "org/tiny@old", "org/none"]
    names += ["org/gated", "org/private", "org/plain", "org/no", "org/down"]
    with serving(models) as (url, served):
        printed = convert(tmp_path / "online", url, *names, code=SMALL_CHUNKS)
    assert printed[:3] == [f"{name} 0" for name in names[:3]]
    assert printed[4::2] == [f"{name} 2" for name in names[3:]]
    sentences = ["no revision old", "no directory org/none", "is gated", "it is private", "gpt9"]
    for sentence, line in zip(
        [*sentences, "answers 403", "answers 500"], printed[3::2], strict=True
    ):
        assert sentence in line
    # Weights of an unknown model type are not downloaded. An interrupted download resumes.
    downloads = [path for verb, path, _ in served.requests if verb == "GET" and "/resolve/" in path]
    small = ["config.json", "tokenizer.json", "tokenizer_config.json"]
    wanted = [*small, *small, "generation_config.json", *["model.safetensors"] * 2]
    assert sorted(path.rpartition("/")[2] for path in downloads) == sorted(wanted)
    assert any(each for *_, each in served.requests)
    assert f"Bearer {SECRET}" in served.tokens
    local = tmp_path / "local"
    assert our_models.convert(f"--from_hf={source}", f"--output_dir={local}") == 0
    saved = [latest(path / "checkpoints") for path in (local, tmp_path / "online/0")]
    assert saved[0].shapes() == saved[1].shapes()
    for path in (local / "huggingface").iterdir():
        assert (tmp_path / "online/0/huggingface" / path.name).read_bytes() == path.read_bytes()
    # Without a network the cache is enough; without the library, a sentence says what to install.
    printed = convert(tmp_path / "offline", "http://127.0.0.1:9", "org/tiny", "org/other")
    assert printed[0] == "org/tiny 0" and printed[2] == "org/other 2"
    assert "check the network" in printed[1]
    hidden = "import sys; sys.modules['huggingface_hub'] = None\n"
    (said, code) = convert(tmp_path / "without", "", "org/tiny", code=hidden)
    assert code == "org/tiny 2" and "pip install huggingface_hub" in said
