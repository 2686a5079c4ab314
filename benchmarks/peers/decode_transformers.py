"""Greedy decoding in Hugging Face transformers: a GPT-2 of the same size, with its key/value cache.
With --compile, the cache has a fixed size, and torch.compile compiles a decode step.

Unlike the language model of the other benchmarks, GPT-2 has biases and layer norms, which cost
little. Its initial weights are its own, so its tokens differ from t2tp's.
"""

from __future__ import annotations

import turn

turn.PARSER.add_argument("--new_tokens", type=int, default=64)
turn.PARSER.add_argument("--prompt", type=int, default=16, help="tokens of each prompt")
turn.PARSER.add_argument("--compile", action="store_true")
args = turn.arguments()

import language_model as lm
import torch
import transformers

sizes = turn.sizes(args)
torch.manual_seed(0)
config = transformers.GPT2Config(
    vocab_size=sizes.vocab,
    n_positions=args.prompt + args.new_tokens,
    n_embd=sizes.d_model,
    n_layer=sizes.layers,
    n_head=sizes.heads,
    n_inner=sizes.d_ff,
    activation_function="relu",
    bos_token_id=None,
    eos_token_id=None,
)
model = transformers.GPT2LMHeadModel(config).eval().to(getattr(torch, args.dtype))
prompts = torch.from_numpy(lm.targets(sizes)[:, : args.prompt]).long()
everything = torch.ones_like(prompts)
cache = {"cache_implementation": "static"} if args.compile else {}
if args.compile:  # generate() compiles by itself on accelerators only.
    model.forward = torch.compile(model.forward)


@torch.inference_mode()
def step() -> float:
    written = model.generate(
        prompts,
        attention_mask=everything,
        do_sample=False,
        use_cache=True,
        max_new_tokens=args.new_tokens,
        pad_token_id=0,
        **cache,
    )
    assert written.shape[1] == args.prompt + args.new_tokens
    return 0.0


turn.take_turns(
    step,
    version=f"transformers {transformers.__version__} on torch {torch.__version__}",
    work=sizes.batch * args.new_tokens,
    threads=torch.get_num_threads(),
)
