"""Greedy decoding of one language model, with a key/value cache."""

from __future__ import annotations

from suite.turns import Peer

from cases.group import Group

BATCHES = (1, 16, 64)
NEW_TOKENS = 64
PROMPT = 16


def groups(meshes: tuple[str, ...], size: str) -> list[Group]:
    """Returns a group for each mesh and batch."""
    return [
        Group(f"{mesh}, batch {batch}", _peers(mesh, batch, size), batch * NEW_TOKENS, "tokens")
        for mesh in meshes
        for batch in BATCHES
    ]


def _peers(mesh: str, batch: int, size: str) -> list[Peer]:
    data, model = mesh.split("x")
    options = [
        f"--size={size}",
        f"--batch={batch}",
        f"--new_tokens={NEW_TOKENS}",
        f"--prompt={PROMPT}",
        f"--data={data}",
        f"--model={model}",
    ]
    ours = {"t2tp": options}
    if data == model == "1":  # t2tp_decoder also uses XLA, unless there is little to decode.
        ours = {"t2tp": [*options, "--xla"], "t2tp, not compiled": options}
    return [
        *(Peer(name, "decode_ours", arguments) for name, arguments in ours.items()),
        Peer("transformers (PyTorch)", "decode_transformers", options, "torch"),
        Peer("transformers, compiled", "decode_transformers", [*options, "--compile"], "torch"),
    ]
