"""Greedy decoding in t2tp: `transformer_lm` with its key/value cache, one program for the loop."""

from __future__ import annotations

import turn

turn.PARSER.add_argument("--new_tokens", type=int, default=64)
turn.PARSER.add_argument("--prompt", type=int, default=16, help="tokens of each prompt")
args = turn.arguments()

import ours_model
import tensorflow as tf

from t2tp.decoding import DecodeOptions, Decoder, Request

sizes = turn.sizes(args)
model = ours_model.model(sizes, args.dtype, max_length=args.prompt + args.new_tokens)
options = DecodeOptions(beam_size=1, batch_size=sizes.batch, eos_id=-1)
decoder = Decoder.from_model(
    model,
    options,
    mesh_shape=f"data:{args.data};model:{args.model}",
    layout=ours_model.LAYOUT,
    xla=args.xla or None,
)
prompts = ours_model.lm.targets(sizes)[:, : args.prompt].tolist()
requests = [Request(prefix=prompt, limit=args.new_tokens) for prompt in prompts]


def step() -> float:
    rows = decoder(requests)
    assert all(len(best.tokens) == args.new_tokens for (best,) in rows)
    return 0.0


work = sizes.batch * args.new_tokens
turn.take_turns(step, version=f"t2tp on tensorflow {tf.__version__}", work=work)
