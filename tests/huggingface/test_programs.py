"""Runs converted from a directory work in the programs: decoding, conversations, the example."""

import io
import itertools
import json
import runpy
import sys
from pathlib import Path

import pytest

from t2tp.huggingface.safetensors_file import read_header
from t2tp.problems.vocab.vocabulary_file import load_vocabulary
from t2tp.trainer.cli import programs
from tests.huggingface import our_models
from tests.huggingface.tiny_files import END, write_tiny_gpt2, write_tiny_llama
from tests.problems import tiny_tokenizers
from tests.problems.tiny_tokenizers import CONVERSATIONS as CHATS
from tests.problems.tiny_tokenizers import TEMPLATES, TOKENIZERS

EXAMPLE = Path(__file__).parents[2] / "examples/huggingface.py"
TEMPLATE = """<|endoftext|>{% for message in messages %}
{{ message.role }}: {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}assistant:{% endif %}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / "source"
    write_tiny_gpt2(directory, n_positions=96)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="module")
def run(source):
    made = source.with_name("run")
    assert our_models.convert(f"--from_hf={source}", f"--output_dir={made}") == 0
    return made


def decode(run, *flags, hparams="beam_size=1,extra_length=12,eos_id=-1"):
    options = f"--decode_hparams={hparams}"
    command = ["t2tp_decoder", f"--output_dir={run}", options, "--noxla", *flags]
    return programs.t2tp_decoder(command)


def their_texts(source, prompts):
    """Returns what `transformers` writes after prompts; the model reads no token before them."""
    pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")
    import tokenizers
    import torch
    import transformers

    model = transformers.GPT2LMHeadModel.from_pretrained(source).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    found = []
    for prompt in prompts:
        given = torch.tensor([tokenizer.encode(prompt).ids])
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        found.append(tokenizer.decode(out[0, given.shape[1] :].tolist()))
    return found


def test_a_converted_run_decodes_prompts_without_data(source, run, tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.txt"
    prompts.write_text("the quick\nfox")
    assert decode(run, f"--decode_from_file={prompts}", f"--decode_to_file={out}") == 0
    # The model reads its bos_token_id before the prompt.
    begin = json.loads((source / "config.json").read_text())["bos_token_id"]
    import tokenizers

    first = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).id_to_token(begin)
    wanted = their_texts(source, [first + "the quick", first + "fox"])
    assert out.read_text().splitlines() == [each.replace("\n", "\\n") for each in wanted]


def test_lines_that_are_no_conversation_are_refused(run, tmp_path, capsys):
    lines, out = tmp_path / "chats.jsonl", tmp_path / "out.txt"
    lines.write_text('"Hello"\n')
    assert decode(run, f"--decode_from_file={lines}", f"--decode_to_file={out}") == 2
    assert "chats.jsonl, line 1: a conversation is a list of messages" in capsys.readouterr().err
    lines.write_text(json.dumps([{"role": "user", "content": "the " * 500_000}]))
    assert decode(run, f"--decode_from_file={lines}", f"--decode_to_file={out}") == 2
    assert " characters, and 2,000,000 are the maximum" in capsys.readouterr().err


def test_what_is_typed_is_a_conversation(source, run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the\nlazy\n\nthe\n"))
    capsys.readouterr()
    assert decode(run, "--decode_interactive", "--chat") == 0
    (first,) = their_texts(source, [f"{END}user: the\nassistant:"])
    asked = f"{END}user: the\nassistant: {first}\nuser: lazy\nassistant:"
    (second,) = their_texts(source, [asked])
    assert capsys.readouterr().out == f"{first}\n{second}\n{first}\n"


_KINDS = zip(TOKENIZERS, itertools.cycle(["begins", "turns"]))


@pytest.mark.parametrize(("kind", "template"), [each for each in _KINDS])
@pytest.mark.parametrize("num_ends", [1, 3])
def test_replies_end_where_those_of_transformers_do(tmp_path, kind, template, num_ends, capsys):
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")
    source, run = tmp_path / "source", tmp_path / "run"
    tiny_tokenizers.write(tmp_path, kind)
    size = len(load_vocabulary(tmp_path))
    write_tiny_llama(source, vocab_size=size, max_position_embeddings=128)
    tiny_tokenizers.write(source, kind, TEMPLATES[template])
    model = transformers.LlamaForCausalLM.from_pretrained(source).eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(source)
    asked = [chat[:1] for chat in CHATS] + [CHATS[1][:4]]

    def generate(messages, **options):
        given = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        out = model.generate(**given, pad_token_id=0, **options)
        return out[0, given["input_ids"].shape[1] :].tolist()

    # End tokens that greedy decoding writes, so that replies end after different numbers of tokens.
    greedy = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
    ends = list(dict.fromkeys([generate(each, **greedy)[3 + n] for n, each in enumerate(asked)]))
    ends = [*ends, tokenizer.eos_token_id][:num_ends]
    settings = {"eos_token_id": ends[0] if num_ends == 1 else ends, "max_new_tokens": 12}
    if num_ends > 1:  # top_k=1 makes sampling deterministic
        settings |= {"do_sample": True, "temperature": 0.7, "top_k": 1, "min_new_tokens": 4}
    (source / "generation_config.json").write_text(json.dumps(settings))
    model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    assert our_models.convert(f"--from_hf={source}", f"--output_dir={run}") == 0
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in asked))
    capsys.readouterr()
    flags = [f"--decode_from_file={tmp_path / 'chats.jsonl'}", "--decode_to_file=-"]
    assert decode(run, *flags, hparams="") == 0
    written = [generate(each) for each in asked]
    kept = [[token for token in each if token not in ends] for each in written]
    wanted = [tokenizer.decode(each, skip_special_tokens=True) for each in kept]
    assert min(map(len, written)) < 12
    escaped = [
        each.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") for each in wanted
    ]
    assert capsys.readouterr().out.split("\n")[:-1] == escaped


def test_a_run_without_a_template_takes_no_conversation(source, tmp_path, capsys):
    write_tiny_gpt2(tmp_path / "plain")
    run = tmp_path / "run"
    assert our_models.convert(f"--from_hf={tmp_path / 'plain'}", f"--output_dir={run}") == 0
    (tmp_path / "chats.jsonl").write_text(json.dumps(CHATS[0]))
    assert decode(run, f"--decode_from_file={tmp_path / 'chats.jsonl'}") == 2
    assert "has no chat template" in capsys.readouterr().err
    assert decode(run, "--chat", "--split=test") == 2
    assert "--chat" in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_converts_trains_and_writes_back(source, tmp_path, monkeypatch, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    work = tmp_path / "work"
    hparams = "batch_size=4,learning_rate_constant=0.01,learning_rate_warmup_steps=1"
    flags = [f"--model={source}", f"--texts={texts}", f"--directory={work}", "--steps=3"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *flags, f"--hparams={hparams}"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert len(found) == 2
    before, after = (each["bits_per_byte"] for each in found)
    assert after < before
    tensors, wanted = (
        read_header(path / "model.safetensors") for path in (work / "written", source)
    )
    assert {key: each.shape for key, each in tensors.items()} == {
        key: each.shape for key, each in wanted.items()
    }
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (work / "written" / name).read_bytes() == (source / name).read_bytes()
