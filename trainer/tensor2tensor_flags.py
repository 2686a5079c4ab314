"""What became of the flags of `t2t-trainer`, for people who come from tensor2tensor."""

from __future__ import annotations

from typing import NamedTuple


class Fate(NamedTuple):
    """What became of a flag.

    Attributes:
      kind: "same" (here it is, with its meaning), "renamed" or "gone".
      note: what to use instead, or why nothing; for "same", what is different, if anything is.
    """

    kind: str
    note: str = ""


_SAME = Fate("same")
_DECODER = Fate("renamed", "`t2tp_decoder` has a flag of this name")
_TPU = Fate("gone", "it is about TPUs; t2tp trains on GPUs and CPUs")
_CLOUD = Fate("gone", "it is about Google's ML Engine; `t2tp_launch` and Slurm start processes")
_SERVERS = Fate(
    "gone", "there are no parameter servers: variables lie on the devices, as `--layout` says"
)
_PROFILE = Fate("renamed", "`--profile_steps=100:105`, which TensorBoard's profiler shows")

# In the order of tensor2tensor's own documentation.
FATES: dict[str, Fate] = {
    "registry_help": _SAME,
    "model": _SAME,
    "problem": Fate("same", "also `tfds:NAME` and `mixture:...`"),
    "hparams_set": Fate("same", "also a run's `hparams.json`"),
    "hparams": Fate("same", "what cannot be is refused"),
    "hparams_range": Fate("same", "`--trial=K` draws the point K; `t2tp_tune` runs several"),
    "data_dir": _SAME,
    "tmp_dir": _SAME,
    "output_dir": _SAME,
    "t2t_usr_dir": _SAME,
    "generate_data": _SAME,
    "train_steps": _SAME,
    "eval_steps": Fate("same", "by default all batches of the split"),
    "schedule": Fate("same", "by default `train_and_evaluate`"),
    "local_eval_frequency": Fate("same", "it does not decide when to save"),
    "eval_throttle_seconds": Fate("gone", "evaluations come every `--local_eval_frequency` steps"),
    "eval_timeout_mins": _SAME,
    "eval_use_test_set": _SAME,
    "eval_run_autoregressive": Fate("gone", "tensor2tensor never read it; use `t2tp_decoder`"),
    "eval_early_stopping_metric": _SAME,
    "eval_early_stopping_steps": _SAME,
    "eval_early_stopping_metric_delta": _SAME,
    "eval_early_stopping_metric_minimize": _SAME,
    "keep_checkpoint_max": _SAME,
    "keep_checkpoint_every_n_hours": _SAME,
    "save_checkpoints_secs": Fate("same", "or `--save_checkpoints_steps`"),
    "warm_start_from": _SAME,
    "random_seed": _SAME,
    "log_step_count_steps": _SAME,
    "log_device_placement": Fate("gone", "which processor is which device is always printed"),
    "inter_op_parallelism_threads": _SAME,
    "intra_op_parallelism_threads": _SAME,
    "worker_gpu": Fate("same", "short for `--mesh_shape=data:N`"),
    "worker_gpu_memory_fraction": Fate(
        "gone", "TensorFlow's own TF_FORCE_GPU_ALLOW_GROWTH=true takes what is needed"
    ),
    "gpu_order": Fate("gone", "CUDA_VISIBLE_DEVICES chooses and orders GPUs"),
    "xla_jit_level": Fate("renamed", "`--xla`"),
    "gpu_automatic_mixed_precision": Fate("renamed", "`--precision=bfloat16` or `float16`"),
    "xla_compile": Fate("renamed", "`--xla`; tensor2tensor ignored it"),
    "profile": _PROFILE,
    "dbgprofile": _PROFILE,
    "export_saved_model": Fate("renamed", "`t2tp_exporter` exports any checkpoint"),
    "decode_hparams": _DECODER,
    "decode_from_file": _DECODER,
    "decode_to_file": _DECODER,
    "decode_reference": _DECODER,
    "optionally_use_dist_strat": Fate("renamed", "`--mesh_shape=data:N`"),
    "enable_graph_rewriter": Fate("gone", "TensorFlow always rewrites graphs"),
    "tfdbg": Fate("renamed", "`--dump_debug_info=DIR`, for TensorBoard's Debugger V2"),
    "master": Fate("renamed", "`--coordinator=HOST:PORT`, or start with `t2tp_launch`"),
    "worker_job": _SERVERS,
    "worker_replicas": Fate("renamed", "`--num_processes`"),
    "worker_id": Fate("renamed", "`--process_id`"),
    "ps_job": _SERVERS,
    "ps_replicas": _SERVERS,
    "ps_gpu": _SERVERS,
    "sync": Fate("gone", "training is always synchronous"),
    "std_server_protocol": Fate("gone", "tensor2tensor never used it; processes talk over gRPC"),
    "use_tpu": _TPU,
    "use_tpu_estimator": _TPU,
    "tpu_num_shards": _TPU,
    "tpu_job_name": _TPU,
    "iterations_per_loop": _TPU,
    "tpu_infeed_sleep_secs": _TPU,
    "cloud_tpu_name": _TPU,
    "export_saved_model_api_version": _TPU,
    "use_guarantee_const_getter": _TPU,
    "cloud_mlengine": _CLOUD,
    "cloud_mlengine_master_type": _CLOUD,
    "autotune_objective": Fate("renamed", "`t2tp_tune --metric`"),
    "autotune_maximize": Fate("renamed", "`t2tp_tune --nominimize`"),
    "autotune_max_trials": Fate("renamed", "`t2tp_tune --trials`"),
    "autotune_parallel_trials": Fate("gone", "`t2tp_tune` runs one trial after another"),
    "job-dir": Fate("renamed", "`--output_dir`"),
}

_HPARAM = "hp_"


def advice(flag: str) -> str:
    """What to tell somebody who gave a flag of tensor2tensor that is not here; "" of any other.

    Args:
      flag: without dashes; of a boolean one also with "no" before it.
    """
    if flag.startswith(_HPARAM):
        return f"Hyperparameters are written --hparams={flag.removeprefix(_HPARAM)}=VALUE."
    fate = FATES.get(flag) or FATES.get(flag.removeprefix("no"))
    if fate is None or fate.kind == "same":
        return ""
    note = fate.note.replace("`", "")
    start = "tensor2tensor's flag is gone" if fate.kind == "gone" else "Here it is"
    return f"{start}: {note}."


def markdown_table() -> str:
    """The table in docs/coming_from_tensor2tensor.md."""
    lines = ["| flag of t2t-trainer | here | |", "| --- | --- | --- |"]
    lines += [f"| `--{name}` | {fate.kind} | {fate.note} |" for name, fate in FATES.items()]
    return "\n".join(lines) + "\n"
