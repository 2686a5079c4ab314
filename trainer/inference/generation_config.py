"""Default decoding options of a run, from its `generation_config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging

from t2tp.decoding import DecodeOptions
from t2tp.decoding.options import BEAM
from t2tp.problems.vocab.special_tokens import GENERATION_FILE, end_ids, read_if_there
from t2tp.trainer.run_dir import huggingface_files

if TYPE_CHECKING:
    from t2tp.trainer.run_spec import RunSpec

# The defaults of `transformers`.
_SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
_LENGTHS = {"max_new_tokens": "extra_length", "min_new_tokens": "min_length"}
_TYPES = {
    **{name: type(default) for name, default in _SAMPLING.items()},
    **dict.fromkeys((*_LENGTHS, "num_beams"), int),
    **{"do_sample": bool, "length_penalty": float},
}

# Entries of the file that cause no warning: they do not change which tokens are generated, or other
# code reads them.
_NEUTRAL_NAMES = (
    *("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"),
    *("transformers_version", "_from_model_config", "use_cache", "cache_implementation"),
    *("return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores"),
)

# Values that disable an entry; False disables any entry.
_NEUTRAL_VALUES = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "typical_p"), 1),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length"), 0),
    **dict.fromkeys(("min_new_tokens", "diversity_penalty", "penalty_alpha"), 0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), 0),
}


def default_options(spec: RunSpec, *, can_sample: bool = True) -> dict[str, Any]:
    """Returns the default options of a run's decoding, for `DecodeOptions.parse`.

    A language model decodes greedily and an encoder-decoder with beam search, unless the
    `generation_config.json` of a converted run says otherwise. A warning lists the entries of that
    file that have no effect here.

    `transformers` divides the log-probability of a sequence by `length ** length_penalty`. Here
    `alpha` gets this exponent, but the divisor is `((5 + length) / 6) ** alpha`, which ranks beams
    similarly. A warning reports the difference.

    Unless `can_sample`, sampling and beam search are impossible, and decoding is greedy.

    Raises:
      ValueError: the file is damaged, or a value is out of range.
      OSError: the file cannot be read.
    """
    reads_inputs, output_dir = spec.problem.reads_inputs, spec.config.output_dir
    options: dict[str, Any] = {} if reads_inputs and can_sample else {"beam_size": 1}
    path = huggingface_files.directory_in(output_dir) / GENERATION_FILE
    config = read_if_there(path, _TYPES)
    config = {name: value for name, value in config.items() if value is not None}
    used = {"do_sample", *_SAMPLING}
    if can_sample and config.get("do_sample"):
        options |= {name: config.get(name, default) for name, default in _SAMPLING.items()}
    elif can_sample and "num_beams" in config:
        options["beam_size"] = config["num_beams"]
        used.add("num_beams")
    penalty = config.get("length_penalty", 1.0 if config.get("num_beams", 1) > 1 else None)
    if can_sample and penalty is not None and penalty >= 0:
        options["alpha"] = penalty
        used.add("length_penalty")
    if not reads_inputs:  # With inputs, `extra_length` is relative to the inputs' length.
        options |= {ours: config[name] for name, ours in _LENGTHS.items() if name in config}
        used |= _LENGTHS.keys()
    if huggingface_files.tokenizer_directory(output_dir) == Path(spec.data_dir):
        # If a run does not use its converted tokenizer, `with_eos` takes EOS from the run's data.
        options |= {"eos_id": ends} if (ends := tuple(end_ids(path))) else {}
    unused = [
        f"{name}={value}"
        for name, value in config.items()
        if name not in {*used, *_NEUTRAL_NAMES}
        and value is not False
        and value != _NEUTRAL_VALUES.get(name)
    ]
    if unused:
        logging.warning(
            "%s: decoding ignores %s: replies differ from those of transformers",
            *(path, ", ".join(unused)),
        )
    try:
        method = DecodeOptions(**options).method
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if method == BEAM and options.get("alpha"):
        logging.warning(
            "%s: log-probabilities of beams are divided by ((5 + length) / 6) ** %s (alpha), and"
            " in transformers by length ** length_penalty",
            *(path, penalty),
        )
    return options
