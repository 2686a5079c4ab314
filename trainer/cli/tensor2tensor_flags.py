"""The flags of `t2t-trainer` and their counterparts here, for users of tensor2tensor."""

from __future__ import annotations

from typing import NamedTuple


class FlagStatus(NamedTuple):
    """The status of a flag of tensor2tensor.

    Attributes:
      kind: "same" (the flag exists with its meaning), "renamed" or "gone".
      note: the replacement, or why there is none; for "same", the differences, if any.
    """

    kind: str
    note: str = ""


_SAME = FlagStatus("same")
_DECODER = FlagStatus("renamed", "`t2tp_decoder` has a flag of this name")
_TPU = FlagStatus("gone", "it is about TPUs; t2tp trains on GPUs and CPUs")
_CLOUD = FlagStatus(
    "gone", "it is about Google's ML Engine; `t2tp_launch` and Slurm start processes"
)
_SERVERS = FlagStatus(
    "gone", "there are no parameter servers: variables lie on the devices, as `--layout` says"
)
_PROFILE = FlagStatus("renamed", "`--profile_steps=100:105`, which TensorBoard's profiler shows")

# In the order of tensor2tensor's own documentation.
FLAG_STATUS: dict[str, FlagStatus] = {
    "registry_help": _SAME,
    "model": _SAME,
    "problem": FlagStatus("same", "also `tfds:NAME` and `mixture:...`"),
    "hparams_set": FlagStatus("same", "also a run's `hparams.json`"),
    "hparams": FlagStatus("same", "what cannot be is refused"),
    "hparams_range": FlagStatus("same", "`--trial=K` draws the point K; `t2tp_tune` runs several"),
    "data_dir": _SAME,
    "tmp_dir": _SAME,
    "output_dir": _SAME,
    "t2t_usr_dir": _SAME,
    "generate_data": _SAME,
    "train_steps": _SAME,
    "eval_steps": FlagStatus("same", "by default all batches of the split"),
    "schedule": FlagStatus("same", "by default `train_and_evaluate`"),
    "local_eval_frequency": FlagStatus("same", "it does not decide when to save"),
    "eval_throttle_seconds": FlagStatus(
        "gone", "evaluations come every `--local_eval_frequency` steps"
    ),
    "eval_timeout_mins": _SAME,
    "eval_use_test_set": _SAME,
    "eval_run_autoregressive": FlagStatus(
        "gone", "tensor2tensor never read it; use `t2tp_decoder`"
    ),
    "eval_early_stopping_metric": _SAME,
    "eval_early_stopping_steps": _SAME,
    "eval_early_stopping_metric_delta": _SAME,
    "eval_early_stopping_metric_minimize": _SAME,
    "keep_checkpoint_max": _SAME,
    "keep_checkpoint_every_n_hours": _SAME,
    "save_checkpoints_secs": FlagStatus("same", "or `--save_checkpoints_steps`"),
    "warm_start_from": _SAME,
    "random_seed": _SAME,
    "log_step_count_steps": _SAME,
    "log_device_placement": FlagStatus("gone", "which processor is which device is always printed"),
    "inter_op_parallelism_threads": _SAME,
    "intra_op_parallelism_threads": _SAME,
    "worker_gpu": FlagStatus("same", "short for `--mesh_shape=data:N`"),
    "worker_gpu_memory_fraction": FlagStatus(
        "gone", "TensorFlow's own TF_FORCE_GPU_ALLOW_GROWTH=true takes what is needed"
    ),
    "gpu_order": FlagStatus("gone", "CUDA_VISIBLE_DEVICES chooses and orders GPUs"),
    "xla_jit_level": FlagStatus("renamed", "`--xla`"),
    "gpu_automatic_mixed_precision": FlagStatus("renamed", "`--precision=bfloat16` or `float16`"),
    "xla_compile": FlagStatus("renamed", "`--xla`; tensor2tensor ignored it"),
    "profile": _PROFILE,
    "dbgprofile": _PROFILE,
    "export_saved_model": FlagStatus("renamed", "`t2tp_exporter` exports any checkpoint"),
    "decode_hparams": _DECODER,
    "decode_from_file": _DECODER,
    "decode_to_file": _DECODER,
    "decode_reference": _DECODER,
    "optionally_use_dist_strat": FlagStatus("renamed", "`--mesh_shape=data:N`"),
    "enable_graph_rewriter": FlagStatus("gone", "TensorFlow always rewrites graphs"),
    "tfdbg": FlagStatus("renamed", "`--dump_debug_info=DIR`, for TensorBoard's Debugger V2"),
    "master": FlagStatus("renamed", "`--coordinator=HOST:PORT`, or start with `t2tp_launch`"),
    "worker_job": _SERVERS,
    "worker_replicas": FlagStatus("renamed", "`--num_processes`"),
    "worker_id": FlagStatus("renamed", "`--process_id`"),
    "ps_job": _SERVERS,
    "ps_replicas": _SERVERS,
    "ps_gpu": _SERVERS,
    "sync": FlagStatus("gone", "training is always synchronous"),
    "std_server_protocol": FlagStatus(
        "gone", "tensor2tensor never used it; processes talk over gRPC"
    ),
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
    "autotune_objective": FlagStatus("renamed", "`t2tp_tune --metric`"),
    "autotune_maximize": FlagStatus("renamed", "`t2tp_tune --nominimize`"),
    "autotune_max_trials": FlagStatus("renamed", "`t2tp_tune --trials`"),
    "autotune_parallel_trials": FlagStatus("renamed", "`t2tp_tune --parallel_trials`"),
    "job-dir": FlagStatus("renamed", "`--output_dir`"),
}

_HPARAM = "hp_"


def advice(flag: str) -> str:
    """Returns advice on a flag of tensor2tensor that does not exist here; "" for any other flag.

    Args:
      flag: without dashes; a boolean one may begin with "no".
    """
    if flag.startswith(_HPARAM):
        return f"Hyperparameters are written --hparams={flag.removeprefix(_HPARAM)}=VALUE."
    status = FLAG_STATUS.get(flag) or FLAG_STATUS.get(flag.removeprefix("no"))
    if status is None or status.kind == "same":
        return ""
    note = status.note.replace("`", "")
    start = "tensor2tensor's flag is gone" if status.kind == "gone" else "Here it is"
    return f"{start}: {note}."


def markdown_table() -> str:
    """Returns the table in docs/coming_from_tensor2tensor.md."""
    lines = ["| flag of t2t-trainer | here |  |", "| -- | -- | -- |"]
    lines += [
        f"| `--{name}` | {status.kind} | {status.note} |" for name, status in FLAG_STATUS.items()
    ]
    return "\n".join(lines) + "\n"
