"""`generation_config.json` sets the defaults of decoding."""

import json
import re
from types import SimpleNamespace

import pytest

from t2tp.decoding import DecodeOptions
from t2tp.trainer.inference.generation_config import default_options

SAMPLES = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 7}
BEAMS = {"beam_size": 5, "alpha": 1.0}
SAMPLED = {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "extra_length": 7}


def options(tmp_path, config, text="", reads_inputs=False, **given):
    (tmp_path / "huggingface").mkdir(exist_ok=True)
    (tmp_path / "huggingface/generation_config.json").write_text(json.dumps(config))
    spec = SimpleNamespace(
        problem=SimpleNamespace(reads_inputs=reads_inputs),
        config=SimpleNamespace(output_dir=str(tmp_path)),
        data_dir=str(tmp_path),
    )
    return DecodeOptions.parse(text, **default_options(spec, **given))


CASES = [
    ({}, "", {"beam_size": 1}),
    ({}, "return_beams=true", {"return_beams": True}),
    (SAMPLES, "", {**SAMPLED, "beam_size": 1}),
    (SAMPLES, "temperature=1", {**SAMPLED, "temperature": 1.0}),
    (SAMPLES, "temperature=0", {"temperature": 0.0, "extra_length": 7}),
    (SAMPLES, "beam_size=3,extra_length=4", {"beam_size": 3, "extra_length": 4}),
    ({**SAMPLES, "do_sample": False}, "", {"beam_size": 1, "extra_length": 7}),
    ({"num_beams": 5, "min_new_tokens": 2}, "", {**BEAMS, "min_length": 2}),
    ({"num_beams": 5}, "top_k=3", {"top_k": 3, "alpha": 1.0}),
    ({"num_beams": 5, "length_penalty": 0.0}, "", {**BEAMS, "alpha": 0.0}),
    ({"length_penalty": 2}, "beam_size=5", {**BEAMS, "alpha": 2.0}),
    ({"num_beams": 5, "length_penalty": 2}, "alpha=0.6", {**BEAMS, "alpha": 0.6}),
]


@pytest.mark.parametrize(("config", "text", "wanted"), CASES)
def test_what_is_named_replaces_the_method_of_the_file(tmp_path, config, text, wanted):
    assert options(tmp_path, config, text) == DecodeOptions(**wanted)


def test_sequence_to_sequence_models_search_and_some_formats_are_greedy(tmp_path):
    assert options(tmp_path, {}, reads_inputs=True) == DecodeOptions()
    assert options(tmp_path, {"do_sample": True}, reads_inputs=True).method == "sample"
    for reads_inputs in (False, True):
        given = {"reads_inputs": reads_inputs, "can_sample": False}
        assert options(tmp_path, SAMPLES, **given).method == "greedy"


PENALTIES = [(2.0, r"\*\* 2.0 \(alpha\)"), (0, ""), (-1.0, "length_penalty=-1.0")]


@pytest.mark.parametrize(("penalty", "message"), PENALTIES)
def test_another_effect_of_a_length_penalty_is_reported(tmp_path, caplog, penalty, message):
    config = {"length_penalty": penalty}
    assert options(tmp_path, config).method == "greedy"
    caplog.clear()
    options(tmp_path, config, reads_inputs=True)
    assert len(caplog.records) == bool(message) and re.search(message, caplog.text)


def test_settings_without_an_option_are_named_and_bad_ones_refused(tmp_path, caplog):
    config = {"repetition_penalty": 1.1, "typical_p": 1.0, "forced_eos_token_id": 0, "min_p": None}
    config |= {"no_repeat_ngram_size": 1, "min_length": 0, "early_stopping": False}
    options(tmp_path, {**config, "eos_token_id": [3], "bos_token_id": 2, "max_length": 20})
    (record,) = caplog.records
    ignored = "repetition_penalty=1.1, forced_eos_token_id=0, no_repeat_ngram_size=1, max_length=20"
    assert f"ignores {ignored}: replies differ" in record.message
    for bad in ({"do_sample": True, "top_p": 0}, {"top_k": "3"}, {"do_sample": 1}):
        with pytest.raises(ValueError, match=r"generation_config.json: .*(top_p|top_k|do_sample)"):
            options(tmp_path, bad)
