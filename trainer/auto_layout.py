"""`--mesh_shape=auto --layout=auto`: searches for the fastest layout on the available devices."""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import tensorflow as tf
from absl import logging

from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.planner.candidates import CHOSEN, RESET
from t2tp.planner.cluster_file import THIS_MACHINE, ClusterFile, shipped
from t2tp.planner.search import Search
from t2tp.problems.user_dir import import_user_dir
from t2tp.processes.cluster import has_gpu
from t2tp.processes.process_spec import DEVICES_VARIABLE, find_process_spec
from t2tp.quiet import import_tensorflow
from t2tp.report.units import duration, size
from t2tp.trainer.errors import UsageError
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.planning import request

# Number of candidate layouts to plan. Planning one delays the training by a second or more.
_PLANNED = 4


def with_best_layout(
    model: str,
    hparams: HParams,
    vocab_size: int,
    image_shape: Sequence[int],
    user_dir: str | None = None,
    teacher: str = "",
) -> HParams:
    """Returns the hparams with the fastest mesh and layout, and logs the choice.

    `user_dir` is the directory of the user's own models; other arguments are as for `t2tp.plan`.

    Raises:
      UsageError: no layout fits into the devices' memory, or the kind of GPU is unknown.
    """
    devices, cluster = device_count(), this_cluster()
    # The search lowers programs. Lowering starts TensorFlow, after which no virtual devices can be
    # created. So the search runs in another process.
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=import_tensorflow) as pool:
        search = pool.submit(
            _search, model, hparams, vocab_size, image_shape, devices, cluster, user_dir, teacher
        )
        try:
            chosen, message = search.result()
        except LayoutError as error:
            raise UsageError(f"--mesh_shape=auto: {error}") from error
    logging.info("%s", message)
    return chosen


def _search(
    model: str,
    hparams: HParams,
    vocab_size: int,
    image_shape: Sequence[int],
    devices: int,
    cluster: ClusterFile,
    user_dir: str | None,
    teacher: str = "",
) -> tuple[HParams, str]:
    """Does the work of `with_best_layout`; returns the hparams and the message to log."""
    if user_dir:
        import_user_dir(user_dir)
    planned = hparams.with_values({"mesh_shape": "", "layout": ""})
    rows = sequences_per_batch(planned, Layout.from_hparams(planned))
    of_batch = {"batch_size": rows, "batch_size_unit": "sequences_per_batch"}
    planned = planned.with_values(of_batch)
    fixed = {name: hparams.get(name) for name in (*CHOSEN, *RESET) if name in hparams}
    if devices == 1 and "zero_stage" in fixed:
        fixed["zero_stage"] = 0
    planned_request = request(model, planned, vocab_size, image_shape, teacher)
    best, *_ = Search(planned_request, cluster, devices, rows, fixed=fixed, top=_PLANNED).run()
    message = (
        f"chosen for {devices} device{'s' * (devices > 1)} of {cluster.name}: {best.flags}"
        f" ({duration(best.plan.seconds)} a step and {size(best.plan.memory_total)} of a device,"
        " by t2tp_plan)"
    )
    best_layout = {name: best.hparams.get(name) for name in ("mesh_shape", "layout")}
    return hparams.with_values(best_layout), message


def device_count() -> int:
    """Returns the number of devices of all processes."""
    spec = find_process_spec()
    processes = spec.num_processes if spec is not None else 1
    configured = os.environ.get(DEVICES_VARIABLE, "")
    if configured.isdigit():
        return processes * int(configured)
    return processes * (len(tf.config.list_physical_devices("GPU")) if has_gpu() else 1)


def this_cluster() -> ClusterFile:
    """Returns the cluster in `this_machine.toml`, or a shipped cluster with this kind of device.

    Raises:
      UsageError: no cluster file that comes with t2tp describes this kind of GPU.
    """
    if Path(f"{THIS_MACHINE}.toml").exists():
        cluster = ClusterFile.load(THIS_MACHINE)
        # t2tp_calibrate measures CPUs only, so its file does not describe a host's GPUs.
        if not (cluster.device.cores and has_gpu()):
            return cluster
    if not has_gpu():
        return ClusterFile.load("cpu")
    (first, *_) = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(first).get("device_name", "unknown")
    # For example NVIDIA A100-SXM4-40GB. Compare whole words, because an L40S is not an L4.
    words = re.findall("[a-z0-9]+", name.lower())
    known = [kind for kind in shipped() if kind in words]
    if not known:
        raise UsageError(
            f"--mesh_shape=auto: no cluster file describes the GPU {name!r}, only"
            f" {', '.join(shipped())}: describe it in {THIS_MACHINE}.toml in the working directory"
            " (see Clusters in docs/planning.md), or give --mesh_shape and --layout"
        )
    cluster = ClusterFile.load(known[0])
    sizes = [int(word[:-2]) << 30 for word in words if re.fullmatch("[0-9]+gb", word)]
    memory = min([cluster.device.memory, *sizes])
    return replace(cluster, device=replace(cluster.device, memory=memory))
