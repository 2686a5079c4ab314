"""Greedy decoding of GPT-2 in t2tp, with its key/value cache: the whole loop is one call."""

from __future__ import annotations

import peer

args = peer.arguments()

import gpt
import model_t2tp

from t2tp.decoding import DecodeOptions, Decoder, Request

sizes = gpt.MODELS[args.model]
hparams, model = model_t2tp.make(sizes, args.length)
if not model_t2tp.on_gpu:
    hparams.parse("activation_dtype=float32")
options = DecodeOptions(beam_size=1, extra_length=args.new_tokens, batch_size=args.batch, eos_id=-1)
decoder = Decoder.from_model(model, options)
prompts = gpt.targets(sizes, args.batch, args.length - args.new_tokens).tolist()
requests = [Request(prefix=prompt, limit=args.new_tokens) for prompt in prompts]


def step() -> float:
    return float(decoder(requests)[0][0].tokens[-1])


tokens = args.batch * args.new_tokens
peer.measure(
    step, args.steps, tokens, model_t2tp.peak_bytes, between_reads=1, version=model_t2tp.VERSION
)
