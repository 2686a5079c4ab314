"""A new run with another vocabulary finds the rows of embedding and logits by tokens' texts."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import Layout, mtf, object_store, problems
from t2tp.checkpoint import Retention, latest
from t2tp.checkpoint.variables import metadata_of
from t2tp.hparam import HParams
from t2tp.mesh.storage import Storage
from t2tp.problems.vocab.characters import CharacterVocabulary
from t2tp.problems.vocab.vocabulary_file import load_vocabulary
from t2tp.processes.cluster import connect
from t2tp.program.variables import Variables, VariableSpec
from t2tp.trainer.cli import programs
from t2tp.trainer.run_dir import huggingface_files, run_files
from t2tp.trainer.run_dir.run_saver import RunSaver
from t2tp.trainer.run_dir.token_rows import TokenRows, rows_between
from t2tp.trainer.run_dir.warm_start import WarmStart, inherit_files
from tests.checkpoint.samples import values_in
from tests.huggingface import our_models
from tests.huggingface.tiny_files import END, write_tiny_gpt2
from tests.warm_processes import ended, started, tf_configs

MESHES = [
    ("", ""),
    ("data:2;model:2", "vocab:model;d_model:data"),
    ("data:4", "batch:data", Storage(3)),
    ("stage:2;model:2", "layers:stage;vocab:model"),
]


class Texts(CharacterVocabulary):
    """A vocabulary of given texts; some occur several times, for instance as byte and as piece."""

    def __init__(self, texts: list[bytes]) -> None:
        self.token_bytes = [b"", b"", b"", *texts]


def tables(layout: Layout, seed: int, size: int) -> Variables:
    """Creates an embedding, its transpose and a bias."""
    vocab, d_model = mtf.Dimension("vocab", int(size)), mtf.Dimension("d_model", 6)
    made = Variables(layout, connect(layout.size), seed)
    for name, dims in {"table": [vocab, d_model], "head": [d_model, vocab], "b": [vocab]}.items():
        normal = tf1.random_normal_initializer()
        shape = layout.at_rest(mtf.Shape(dims))
        made.create(VariableSpec(name, shape, tf.float32, normal, trainable=True))
    return made


def draw_texts(draw, size: int) -> list[bytes]:
    return [bytes([draw.integers(65, 65 + size)]) for _ in range(size)]


@pytest.mark.parametrize("seed", range(6))
def test_each_row_is_where_its_text_is(tmp_path, seed):
    draw = np.random.default_rng(seed)
    there, here = (Texts(draw_texts(draw, size)) for size in draw.integers(4, 24, 2))
    extra = draw.integers(0, 4, 2)  # Rows without tokens.
    from_layout = Layout(*MESHES[seed % len(MESHES)])
    old = tables(from_layout, 1, len(there) + extra[0])
    metadata = metadata_of(old, from_layout) if seed % 2 else {}
    with RunSaver(tmp_path / "saved", old, Retention(1), metadata) as saver:
        saver.save(7)
    saved = latest(tmp_path / "saved")
    rows = TokenRows.between(there, here)
    old_texts = there.token_texts
    for mesh in MESHES:
        new = tables(Layout(*mesh), 2, len(here) + extra[1])
        for name in ("table", "head", "b"):
            assert rows.fits(saved.shapes()[name], new[name])
            rows.load(saved, name, new[name])
            was, now = (
                (x[name].numpy().T if name == "head" else x[name].numpy()) for x in (old, new)
            )
            found = [text in old_texts for text in here.token_texts] + [False] * extra[1]
            for token in np.flatnonzero(found):
                text = here.token_texts[token]
                same = [row for row, each in enumerate(old_texts) if each == text]
                later = here.token_texts[token + 1 :].count(text)
                np.testing.assert_array_equal(now[token], was[same[max(len(same) - 1 - later, 0)]])
            mean = np.broadcast_to(now[found].mean(0, dtype=np.float64), now.shape)
            np.testing.assert_allclose(now[~np.array(found)], mean[~np.array(found)], 1e-6, 1e-7)
    count = sum(found)
    assert f"{count} of {len(here)} tokens found" in rows.describe()
    lost = [text for text in old_texts if text not in here.token_texts]
    assert len(rows.lost) == len(set(lost))
    same = TokenRows.between(there, there)
    assert same.are_same and rows.are_same == (old_texts == here.token_texts)
    other = tables(Layout(*MESHES[0]), 2, len(there) + 3)["table"]
    same.load(saved, "table", other)
    kept = len(there) + min(extra[0], 3)
    np.testing.assert_array_equal(other.numpy()[:kept], old["table"].numpy()[:kept])


TEXTS = ["the quick brown fox jumps over the lazy dog", "a brown dog jumps over the quick cat"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Converts a GPT-2 with its tokenizer to a run."""
    directory = tmp_path_factory.mktemp("converted")
    write_tiny_gpt2(directory / "source")
    made = directory / "run"
    assert our_models.convert(f"--from_hf={directory / 'source'}", f"--output_dir={made}") == 0
    return made


def train(tmp_path, name, warm, texts, options, hparams, *flags, processes=1):
    """Trains a step that changes no weight; returns the exit code, the run and its vocabulary."""
    file, data, run = (tmp_path / f"{name}{end}" for end in (".txt", ".data", ""))
    file.write_text(f"{texts}\n" * 40)
    problem = [
        *("--problem=languagemodel_textfiles", f"--data_dir={data}"),
        f"--problem_options=files={file},documents=lines,{options}",
    ]
    assert programs.t2tp_datagen(["t2tp_datagen", *problem]) == 0
    still = "learning_rate_constant=0,learning_rate_schedule=constant,batch_size=4,max_length=32"
    given = [
        *(f"--warm_start_from={warm}", f"--hparams_set={warm}/run.yaml"),
        *("--model=transformer_lm", f"--output_dir={run}", "--train_steps=1"),
        *("--schedule=train", f"--hparams={still},{hparams}", *problem, *flags),
    ]
    vocabulary = load_vocabulary(data / "languagemodel_textfiles")
    if processes == 1:
        return programs.t2tp_trainer(["t2tp_trainer", *given]), run, vocabulary
    target, commands = "t2tp.trainer.cli.programs:t2tp_trainer", [given] * processes
    ended(started(target, commands, tf_configs(processes), tmp_path / "said"), [0] * processes)
    return 0, run, vocabulary


def values(run) -> dict[str, np.ndarray]:
    return values_in(latest(run / "checkpoints"))


@pytest.mark.slow
def test_a_run_with_other_data_begins_with_the_rows_of_its_tokens(converted, tmp_path, capsys):
    mesh = ("--mesh_shape=data:2;model:2", "--layout=batch:data;vocab:model")
    given = (tmp_path, "subwords", converted, TEXTS[1], "vocab_size=300", "vocab_size=0", *mesh)
    code, run, vocabulary = train(*given)
    assert code == 0
    log = capsys.readouterr().err
    assert f"of {len(vocabulary)} tokens found by their texts" in log and " lost: " in log
    theirs = load_vocabulary(converted / "huggingface")
    was, now = values(converted)["embedding"], values(run)["embedding"]
    of_bytes = {text: row for row, text in enumerate(theirs.token_texts)}
    assert now.shape[0] == len(vocabulary) and (run / "huggingface").exists() is False
    shared = [(t, text) for t, text in enumerate(vocabulary.token_texts) if text in of_bytes]
    assert len(shared) > 256 and max(len(text) for _, text in shared) > 2
    for token, text in shared:
        np.testing.assert_array_equal(now[token], was[of_bytes[text]])
    np.testing.assert_array_equal(now[vocabulary.end_of_document], was[of_bytes[END]])

    # The next run, in two processes, has a vocabulary of other texts. It begins with the weights
    # and optimizer slots of this run. Its gradients are almost 0, so a step only decays the slots.
    mesh = ("--mesh_shape=model:2;data:2", "--layout=batch:data;vocab:model", "--train_steps=2")
    still, options = "vocab_size=0,clip_grad_norm=1e-30", "vocab_size=290"
    given = (tmp_path, "on", run, TEXTS[0], options, still, "--warm_start_optimizer", *mesh)
    code, on, other = train(*given, processes=2)
    assert code == 0
    was, now = values(run), values(on)
    texts, there = other.token_texts, vocabulary.token_texts
    unique = [text for text in texts if texts.count(text) == there.count(text) == 1]
    shared = [(texts.index(text), there.index(text)) for text in unique]
    assert len(shared) > 200 and any(here != there for here, there in shared)
    here, there = np.transpose(shared)
    for name, decay in (("", 1.0), ("/adam_m", 0.9), ("/adam_v", 0.98)):
        before, after = (each[f"embedding{name}"] for each in (was, now))
        assert np.abs(before).max() > 1e-12
        np.testing.assert_allclose(after[here], np.float32(decay) * before[there], rtol=1e-5)


def test_frozen_rows_cannot_follow(converted, tmp_path, capsys):
    hparams = "vocab_size=0,lora_rank=2,lora_targets=[query]"
    code, *_ = train(tmp_path, "frozen", converted, TEXTS[1], "vocab_size=300", hparams)
    assert code == 2
    assert "embedding is frozen" in capsys.readouterr().err


@pytest.mark.slow
def test_without_data_in_the_store_no_tokenizer_is_inherited(server, tmp_path, caplog):
    run, cache = tmp_path / "run", tmp_path / "cache"
    vocabularies = []
    with object_store.session():
        stored = object_store.local_path("s3://bucket/data")
        for text, data in zip(TEXTS, (stored, tmp_path / "data"), strict=True):
            (tmp_path / "file.txt").write_text(f"{text}\n" * 40)
            options = f"files={tmp_path / 'file.txt'},documents=lines,vocab_size=300"
            problem = problems.find("languagemodel_textfiles", options)
            problem.prepare(data)
            vocabularies.append(problem.vocabulary(data))
            if data == stored:
                flags = {"problem": problem.name, "problem_options": options, "data_dir": data}
                run_files.write(run, HParams(), {**flags, "data_digest": problem.digest(data)})
    huggingface_files.directory_in(run).mkdir()
    there, here = vocabularies
    shutil.rmtree(cache)  # As on another host.
    with object_store.session():
        rows, reason = rows_between(str(run), there)
        assert rows.are_same and not reason
        rows, reason = rows_between(str(run), here)
        assert rows.lost and not reason
    shutil.rmtree(cache)
    server.clear()
    with object_store.session():
        inherit_files(tmp_path / "new", WarmStart(str(run)), rows_between(str(run), there))
    assert "is not copied, as its vocabulary is unknown: " in caplog.text
    assert not (tmp_path / "new").exists()
