"""`transformer_lm_base` in PyTorch: the model, and its training."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F

DECAY = 0.1


def loss_of(p: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean negative log-likelihood of tokens [batch, length + 1]."""
    x = rms_norm(p["embedding"][tokens[:, :-1]], p["embedding_norm/norm_scale"])
    x = shifted(x, p["token_shift"])
    embedded = x
    for layer in range(sum(name.endswith("attention/q") for name in p)):
        x = x + p[f"layer_{layer:02d}/embedding_share"] * embedded
        block = f"layer_{layer:02d}/attention"
        y = rms_norm(x, p[f"{block}/norm_scale"])
        q, k, v = (torch.einsum("btd,dhk->bhtk", y, p[f"{block}/{name}"]) for name in "qkv")
        q, k = (rms_norm(t, p[f"{block}/{n}_norm/norm_scale"]) for n, t in (("q", q), ("k", k)))
        k, v = shifted(k, p[f"{block}/k_shift"]), shifted(v, p[f"{block}/v_shift"])
        attended = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + torch.einsum("bhtk,hkd->btd", attended, p[f"{block}/output"])
        block = f"layer_{layer:02d}/feed_forward"
        y = rms_norm(x, p[f"{block}/norm_scale"])
        x = x + (F.silu(y @ p[f"{block}/gate"]) * (y @ p[f"{block}/input"])) @ p[f"{block}/output"]
    logits = rms_norm(x, p["final/norm_scale"]) @ p["embedding"].T
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def shifted(x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Shifts [batch, (heads,) length, features]."""
    return x + share.unsqueeze(-2) * F.pad(x, (0, 0, 1, 0))[..., :-1, :]


def rms_norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], scale, 1e-6)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Applies rotary positions to [..., length, d_kv]."""
    length, size = x.shape[-2:]
    turns = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.arange(length)[:, None] * turns
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def trained(values, batches, optimizer):
    """Trains with AdamW or Muon, with clipping; Muon trains matrices at a fifth of the rate.

    Args:
      values: name -> initial value.
      batches: tokens [batch, length + 1] and learning rate of each step.
      optimizer: "adam" or "muon".

    Returns:
      The losses, and the values after the last step.
    """
    parameters = {
        name: torch.nn.Parameter(torch.tensor(as_matrix(name, value)))
        for name, value in values.items()
    }
    is_matrix = {
        n for n, p in parameters.items() if p.ndim > 1 and not n.endswith(("embedding", "_shift"))
    }
    matrices = [parameters[name] for name in is_matrix]
    others = [p for name, p in parameters.items() if name not in is_matrix]
    # Rounded to float32, because constants in t2tp's graphs are float32 even in float64 programs.
    betas = tuple(float(np.float32(beta)) for beta in (0.9, 0.98))
    adam = {"betas": betas, "eps": float(np.float32(1e-9))}
    optimizers = [torch.optim.AdamW(others, weight_decay=0.0, **adam)]
    if optimizer == "muon":
        muon = {"momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}
        optimizers.append(torch.optim.Muon(matrices, weight_decay=DECAY, **muon))
    else:
        optimizers.append(torch.optim.AdamW(matrices, weight_decay=DECAY, **adam))
    found = []

    def shaped() -> dict[str, torch.Tensor]:
        return {name: p.view(values[name].shape) for name, p in parameters.items()}

    for tokens, rate in batches:
        loss = loss_of(shaped(), torch.tensor(tokens).long())
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        for each in optimizers:
            is_muon = isinstance(each, torch.optim.Muon)
            each.param_groups[0]["lr"] = rate / 5 if is_muon else rate
            each.step()
        found.append(loss.item())
    return found, {name: value.detach().numpy() for name, value in shaped().items()}


def as_matrix(name: str, value: np.ndarray) -> np.ndarray:
    """Joins heads and d_kv: torch's Muon requires two dimensions."""
    if value.ndim < 3:
        return value
    return value.reshape(-1, value.shape[-1]) if "output" in name else value.reshape(len(value), -1)
