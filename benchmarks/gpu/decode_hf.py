"""Greedy decoding of GPT-2 by Hugging Face transformers, with its key/value cache."""

from __future__ import annotations

import peer

args = peer.arguments()

import gpt
import torch
import transformers

device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = gpt.MODELS[args.model]
config = transformers.GPT2Config(
    vocab_size=sizes.vocab,
    n_positions=args.length,
    n_embd=sizes.d_model,
    n_layer=sizes.layers,
    n_head=sizes.heads,
    bos_token_id=0,
    eos_token_id=None,
    pad_token_id=0,
)
torch.manual_seed(0)
dtype = torch.bfloat16 if device == "cuda" else torch.float32
model = transformers.GPT2LMHeadModel(config).to(device, dtype).eval()
prompt = torch.from_numpy(gpt.targets(sizes, args.batch, args.length - args.new_tokens))
prompt = prompt.long().to(device)


@torch.inference_mode()
def step() -> float:
    written = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=args.new_tokens,
    )
    return float(written[0, -1])


def peak_bytes() -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


version = f"transformers {transformers.__version__}, torch {torch.__version__}"
tokens = args.batch * args.new_tokens
peer.measure(step, args.steps, tokens, peak_bytes, between_reads=1, version=version)
