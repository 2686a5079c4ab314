"""`--mesh_shape=auto --layout=auto`: the search's best layout for the devices that are there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import tensorflow as tf
from absl import logging

from t2tp.hparam import HParams
from t2tp.mesh.layout import LayoutError
from t2tp.planner.cluster_file import THIS_MACHINE, ClusterFile, shipped
from t2tp.planner.search import NothingFitsError, Search
from t2tp.problems.user_dir import import_user_dir
from t2tp.processes.cluster import has_gpu
from t2tp.processes.process_spec import DEVICES_VARIABLE, find_process_spec
from t2tp.trainer.errors import UsageError
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.planning import request

AUTO = "auto"
# Candidates that are planned: each takes a second or more before the training begins.
_PLANNED = 4
_KEPT = (
    "microbatches",
    "recompute",
    "zero_stage",
    "sequence_parallel",
    "pipeline_schedule",
    "pipeline_chunks",
)


def with_best_layout(
    model: str, hparams: HParams, vocab_sizes: Mapping[str, int], user_dir: str | None = None
) -> tuple[HParams, str]:
    """Chooses mesh and layout; microbatches, recomputation and ZeRO stage stay those of hparams.

    Args:
      model: name of a registered model.
      hparams: of the model.
      vocab_sizes: of the problem's data.
      user_dir: of the user's own models, if there is one.

    Returns:
      hparams with mesh and layout, and a sentence that says what was chosen.

    Raises:
      UsageError: nothing fits.
    """
    devices, cluster = device_count(), this_cluster()
    # To lower a program starts TensorFlow up, after which there are no more virtual devices.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        search = pool.submit(
            _search, model, hparams, vocab_sizes["targets"], devices, cluster, user_dir
        )
        try:
            found, said = search.result()
        except (NothingFitsError, LayoutError) as error:
            raise UsageError(f"--mesh_shape=auto: {error}") from error
    logging.info("%s", said)
    return found, said


def _search(
    model: str,
    hparams: HParams,
    vocab_size: int,
    devices: int,
    cluster: ClusterFile,
    user_dir: str | None,
) -> tuple[HParams, str]:
    """Searches, in a process of its own; see `with_best_layout`."""
    if user_dir:
        import_user_dir(user_dir)
    chosen = hparams.copy()
    chosen.set("mesh_shape", "")
    chosen.set("layout", "")
    rows = sequences_per_batch(chosen)
    fixed = {name: hparams.get(name) for name in _KEPT if name in hparams}
    batch = {"batch_size": rows, "batch_size_unit": "sequences_per_batch"}
    for name, value in batch.items():
        chosen.set(name, value)
    wanted = request(model, chosen, vocab_size)
    if devices == 1 and "zero_stage" in fixed:
        fixed["zero_stage"] = 0
    search = Search(wanted, cluster, devices, rows, fixed=fixed, top=_PLANNED)
    best, *_ = search.run()
    found = hparams.copy()
    found.set("mesh_shape", best.candidate.mesh_shape)
    found.set("layout", best.candidate.layout)
    said = (
        f"chosen for {devices} devices of {cluster.name}:"
        f" --mesh_shape='{best.candidate.mesh_shape}' --layout='{best.candidate.layout}',"
        f" of which t2tp_plan says {best.plan.seconds:.3g} s a step and"
        f" {best.plan.memory_total / 2**30:.3g} GiB of a device"
    )
    return found, said


def device_count() -> int:
    """Returns the number of devices of all processes."""
    spec = find_process_spec()
    processes = spec.num_processes if spec is not None else 1
    configured = os.environ.get(DEVICES_VARIABLE, "")
    if configured.isdigit():
        return processes * int(configured)
    return processes * (len(tf.config.list_physical_devices("GPU")) if has_gpu() else 1)


def this_cluster() -> ClusterFile:
    """Returns the measured machine if there is its file, or the cluster of this kind of device."""
    if Path(f"{THIS_MACHINE}.toml").exists():
        return ClusterFile.load(THIS_MACHINE)
    if not has_gpu():
        return ClusterFile.load("cpu")
    (first, *_) = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(first).get("device_name", "").lower()
    matching = [known for known in shipped() if known in name]
    return ClusterFile.load(matching[0] if matching else "a100")
