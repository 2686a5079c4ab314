"""Compares published steps with their plans; cluster files are not fitted to the printed steps.

    python -m tests.planner.published_steps

Prints each step's error and the medians. `published_steps.toml` has the longer tables.
"""

import statistics
from pathlib import Path

from t2tp import registry
from t2tp.planner import ClusterFile, Plan, Request
from t2tp.toml import tomllib
from t2tp.trainer.planning import request

# arXiv:2205.05198, tables 3 and 5: width, heads, layers, stages, rows, rows of a microbatch,
# chunks; seconds with full recomputation, and with selective recomputation and sequence
# parallelism.
MEGATRON = {
    "22B": (6144, 64, 48, 1, 4, 4, 1, 1.42, 1.10),
    "175B": (12288, 96, 96, 8, 64, 1, 3, 18.13, 13.75),
    "530B": (20480, 128, 105, 35, 280, 1, 3, 49.05, 37.83),
    "1T": (25600, 160, 128, 64, 512, 1, 1, 94.42, 71.49),
}
# A method, applied to one layer of the 22B model with tensor parallelism of 8 -> hparams
# `recompute` and `sequence_parallel`; whether the attention weights are stored; bytes saved per
# element of the layer's input (table 2), of which `SCORES` are for scores and their masks;
# milliseconds of the forward and the backward pass (table 4).
SCORES = 5 * 64 * 2048 / 6144
LAYER = {
    "tensor parallelism": ("none", False, True, 10 + (24 + SCORES) / 8, 7.7, 11.9),
    "sequence parallelism": ("none", True, True, (34 + SCORES) / 8, 7.2, 11.8),
    "full recomputation": ("layer", False, True, 2, 7.7, 19.5),
    "selective recomputation": ("none", False, False, 10 + 24 / 8, 7.7, 13.2),
    "selective and sequence": ("none", True, False, 34 / 8, 7.2, 13.1),
}
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
MPT, FOUNDRY, LLAMA = (_TABLES[name] for name in ("mpt", "foundry", "llama"))
_405B = {"d_model": 16384, "d_ff": 53248, "num_heads": 128, "num_kv_heads": 16}


def allocated(plan: Plan) -> float:
    """Returns the GiB that a device allocates, without the driver and the libraries."""
    uncounted = plan.memory["reserved"] + plan.memory["fragmentation"]
    return (plan.memory_total - uncounted) / 2**30


def llama_plan(name, ways, stages, microbatches, milliseconds, gib):
    """Returns the plan of a step on 8 B200, its published seconds, and its published GiB."""
    data, hparams = 8 // ways // stages, registry.hparams("llama_70b")
    mesh = {"stage": stages, "data": data, "model": ways}
    split = "heads:model;kv_heads:model;d_ff:model;vocab:model;residual_length:model"
    rules = {"stage": "layers:stage", "data": "batch:data", "model": split}
    values = {
        "num_hidden_layers": 12 if name == "70B" else 4,
        "batch_size": microbatches * data,
        "batch_size_unit": "sequences_per_batch",
        "microbatches": microbatches,
        "recompute": "none",
        "sequence_parallel": ways > 1,
        "zero_stage": 1 if data > 1 else 0,
        "mesh_shape": ";".join(f"{axis}:{size}" for axis, size in mesh.items() if size > 1),
        "layout": ";".join(rules[axis] for axis, size in mesh.items() if size > 1),
    }
    for key, value in (values | (_405B if name == "405B" else {})).items():
        hparams.set(key, value)
    plan = request("transformer_lm", hparams, 128256).plan(ClusterFile.load("b200", "megatron"))
    return plan, milliseconds / 1e3, gib


def wanted(vocab_size: int, shape: tuple[int, int, int], **values) -> Request:
    """Returns the request for a GPT without biases; `shape` is width, heads and layers."""
    width, heads, layers = shape
    hparams = registry.hparams("gpt3_175b")
    sizes = {"d_model": width, "d_ff": 4 * width, "num_heads": heads, "d_kv": width // heads}
    common = {"batch_size_unit": "sequences_per_batch", "use_bias": False, "zero_stage": 0}
    for name, value in {**sizes, **common, "num_hidden_layers": layers, **values}.items():
        hparams.set(name, value)
    return request("transformer_lm", hparams, vocab_size)


def _megatron(
    sizes: tuple[int, int, int],
    recompute: str,
    sequence_parallel: bool,
    stores_weights: bool,
    mesh_shape: str = "model:8",
    layout: str = "heads:model;d_ff:model;vocab:model",
    **values,
) -> Request:
    return wanted(
        51200,
        sizes,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        mesh_shape=mesh_shape,
        layout=layout + (";residual_length:model" if sequence_parallel else ""),
        layer_prepostprocess_dropout=0.1,
        attention_dropout=0.1,
        # Dense attention saves its weights, and blockwise attention recomputes them.
        attention_method="dense" if stores_weights else "blockwise",
        **values,
    )


def layer_requests(case: str) -> list[Request]:
    """Returns the requests of a row of `LAYER`: with two layers, and with one layer."""
    return [
        _megatron((6144, 64, layers), *LAYER[case][:3], batch_size=4, microbatches=1)
        for layers in (2, 1)
    ]


def megatron_plan(name: str, *, is_selective: bool) -> tuple[Plan, float]:
    """Returns the plan of a step of table 5, and its published seconds."""
    width, heads, layers, stages, rows, part, chunks, full, selective = MEGATRON[name]
    values: dict = {"max_length": 2048, "batch_size": rows, "microbatches": rows // part}
    if stages > 1:
        values["mesh_shape"] = f"stage:{stages};model:8"
        values["layout"] = "heads:model;d_ff:model;vocab:model;layers:stage"
        values["pipeline_schedule"] = "interleaved" if chunks > 1 else "1f1b"
        values["pipeline_chunks"] = chunks
    recompute = "none" if is_selective else "layer"
    step = _megatron((width, heads, layers), recompute, is_selective, not is_selective, **values)
    plan = step.plan(ClusterFile.load("a100", "megatron"))
    return plan, selective if is_selective else full


def foundry_plan(row: tuple) -> tuple[Plan, float]:
    """Returns the plan of one of llm-foundry's steps, and its published seconds."""
    name, length, devices, part, microbatches, recompute, rate = row
    step = wanted(
        50368,
        MPT[name],
        max_length=length,
        batch_size=part * microbatches * devices,
        microbatches=microbatches,
        recompute=recompute,
        mesh_shape=f"data:{devices}",
        layout="batch:data",
        zero_stage=3,
    )
    plan = step.plan(ClusterFile.load("h100", "fsdp_fused_loss"))
    return plan, plan.tokens / devices / rate


def main() -> None:
    """Prints the errors."""
    groups = {
        "Megatron-LM on A100": (
            (name, megatron_plan(name, is_selective=is_selective))
            for name in MEGATRON
            for is_selective in (False, True)
        ),
        "llm-foundry on H100": ((f"{row[0]}, {row[1]}", foundry_plan(row)) for row in FOUNDRY),
        "Megatron-LM on B200": (
            (f"{row[0]}, {row[1]} x {row[2]} x {row[3]}", llama_plan(*row)) for row in LLAMA
        ),
    }
    for title, steps in groups.items():
        errors, inside = [], 0
        memory = []
        for name, (plan, seconds, *gib) in steps:
            # A plan that warns does not predict the time of the allocator's retries.
            warning = " (with a warning: does not count)" if plan.warnings else ""
            print(f"{name:16} {seconds:7.3f} s, planned {plan.seconds:7.3f} s{warning}")
            memory += [abs(allocated(plan) / each - 1) for each in gib]
            if not warning:
                errors.append(abs(plan.seconds / seconds - 1))
                inside += plan.interval[0] <= seconds <= plan.interval[1]
        print(
            f"{title}: {statistics.median(errors):.1%} in the median, {max(errors):.1%} at worst,"
            f" {inside} of {len(errors)} inside the interval"
        )
        if memory:
            print(f"memory: {statistics.median(memory):.1%}, {max(memory):.1%} at worst")


if __name__ == "__main__":
    main()
