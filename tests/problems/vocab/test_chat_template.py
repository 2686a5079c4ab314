"""Chat templates make the same text of a conversation as `transformers`."""

import concurrent.futures
import gc
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t2tp.problems.vocab import template_program
from t2tp.problems.vocab.chat_template import ChatTemplate, conversation_of, has_template

pytest.importorskip("jinja2", reason="pip install -e '.[text]'")

# `rich` has what current templates use: tokens, loops, namespaces, exceptions, JSON, the generation
# tag.
CHATML, RICH = (
    Path(__file__).with_name(f"{name}.jinja").read_text("utf-8") for name in ("chatml", "rich")
)
MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Zürich <b> & 'x'?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And?"},
]
TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "model_max_length": 9}


def template_of(directory, source, **config):
    (directory / "tokenizer_config.json").write_text(json.dumps({**TOKENS, **config}))
    if source:
        (directory / "chat_template.jinja").write_text(source)
    return ChatTemplate.from_directory(directory)


@pytest.mark.parametrize("source", [CHATML, RICH])
@pytest.mark.parametrize("begins_reply", [True, False])
def test_the_text_is_that_of_transformers(source, begins_reply, tmp_path):
    pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")
    from transformers.utils.chat_template_utils import render_jinja_template

    wanted, _ = render_jinja_template(
        [MESSAGES],
        chat_template=source,
        add_generation_prompt=begins_reply,
        bos_token="<s>",
        eos_token="</s>",
    )
    made = template_of(tmp_path, source)
    assert made.render(MESSAGES, add_generation_prompt=begins_reply) == wanted[0]
    assert "Yes." in wanted[0]


def test_the_template_may_be_an_entry_of_the_config(tmp_path):
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    wanted = template_of(tmp_path, "", chat_template=CHATML).render(MESSAGES)
    assert template_of(tmp_path, "", chat_template=named).render(MESSAGES) == wanted
    assert has_template(tmp_path)
    with pytest.raises(FileNotFoundError, match="has no chat template"):
        template_of(tmp_path, "")


def test_a_template_runs_in_a_sandbox(tmp_path):
    made = template_of(tmp_path, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ValueError, match="access to attribute"):
        made.render(MESSAGES)
    changing = template_of(tmp_path, "{{ messages.append(1) }}")
    with pytest.raises(ValueError, match="not safely callable|access to"):
        changing.render(MESSAGES)


def doubling(value):
    """Returns a template that doubles a value 40 times."""
    loop = "{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}"
    return "{% set n = namespace(s=" + value + ") %}" + loop


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


SOURCES = [
    "{{ 1 // 0 }}",
    "{{ messages[0].content[10:1:0] }}",
    "{{ 10.0 ** 400 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 'a' * 9999999999 }}",
    "{{ (messages * 9999999999) | length }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ nothing.of.this }}",
    "{{ 'a' | tojson(default=1) }}",
    ENDLESS,
    "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ 'a'.ljust(10 ** 9) }}{{ 'a' | center(10 ** 9) }}",
    doubling("'ab'"),
    doubling("[1]"),
    "{{ lipsum(n=10 ** 9) }}",
    "{{ 'ab' * 10 ** 7 }}",
]


@pytest.mark.parametrize("source", SOURCES)
def test_whatever_a_template_does_is_a_sentence_soon(source):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(ValueError, match="chat template") as error:
        ChatTemplate(source, {}, max_seconds=0.5).render(MESSAGES)
    assert len(str(error.value).splitlines()) == 1
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB, of the largest child.
    # A child begins with the pages of this process.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after <= max(before, own, 520 * 1024)


@pytest.mark.slow
def test_a_rendering_that_is_stopped_leaves_the_next_ones_alone(recwarn):
    source = "{% if messages[0].content == 'long' %}" + ENDLESS + "{% endif %}{{ 'a' }}"
    template = ChatTemplate(source, {}, max_seconds=0.3)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts = ["short", "long"] * 4
        results = [
            pool.submit(template.render, [{"role": "user", "content": text}]) for text in texts
        ]
    for text, result in zip(texts, results, strict=True):
        if text == "short":
            assert result.result() == "a"
        else:
            assert "longer than 0.3 s" in str(result.exception())
    del template
    gc.collect()
    assert not [each for each in recwarn if issubclass(each.category, ResourceWarning)]


def test_modules_next_to_the_program_are_not_found(tmp_path):
    """Python 3.10 has no option that leaves the program's directory out of sys.path."""
    program = shutil.copy(template_program.__file__, tmp_path)
    (tmp_path / "jinja2.py").write_text("raise SystemExit('this is another jinja2')")
    command = [sys.executable, program, "1"]
    assert subprocess.check_output(command, input=b'"a"\n{}\n').endswith(b'{"text": "a"}\n')


def test_an_older_jinja_is_refused(monkeypatch):
    monkeypatch.setattr("jinja2.__version__", "3.1.5")
    with pytest.raises(ModuleNotFoundError, match=r"3\.1\.5"):
        ChatTemplate(CHATML, {})


def test_what_is_wrong_is_said_in_words(tmp_path):
    with pytest.raises(ValueError, match="not a template of Jinja"):
        template_of(tmp_path, "{% for %}")
    with pytest.raises(ValueError, match="roles are user and assistant"):
        template_of(tmp_path, RICH).render([{"role": "tool", "content": ""}])
    for wrong in ({}, [], "Hello", {"messages": "Hello"}):
        with pytest.raises(ValueError, match="a conversation is a list of messages"):
            conversation_of(wrong)
    with pytest.raises(ValueError, match='a message is an object with a role.*{"text": "Hello"}'):
        conversation_of([{"text": "Hello"}])
    assert conversation_of({"messages": MESSAGES}) == conversation_of(MESSAGES)
    with pytest.raises(ValueError, match="'tools' is \"f\", and must be a list"):
        conversation_of({"messages": MESSAGES, "tools": "f"})
    with pytest.raises(ValueError, match="a part of type 'image'"):
        conversation_of([{"role": "user", "content": [{"type": "image"}]}])
