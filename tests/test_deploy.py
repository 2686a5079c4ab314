"""The files of deploy/ match the published schemas, and their flags exist."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from t2tp.trainer.cli.launch import hosts_of
from tests.page_commands import check_flags

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="comes with t2tp[dev]")
models = pytest.importorskip("kubeflow.training.models", reason="comes with t2tp[dev]")
yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parent.parent / "deploy"
JOB, TFJOB = DEPLOY / "kubernetes-job.yaml", DEPLOY / "kubeflow-tfjob.yaml"
SBATCH = DEPLOY / "slurm.sbatch"


def documents(path: Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


def check_kubernetes(document: dict) -> None:
    """Checks a document against Kubernetes' schema; unknown fields are errors."""
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(document, version, strict=True)


def check_model(value: Any, kind: str) -> None:
    """Checks a value against a model of Kubeflow's client, as generated from its CRDs."""
    if kind == "V1PodTemplateSpec":
        # The operator overwrites the restart policy.
        spec = {**value["spec"], "restartPolicy": "Never"}
        job = {"template": {**value, "spec": spec}}
        check_kubernetes({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": job})
    elif kind.startswith("dict(str, "):
        for each in value.values():
            check_model(each, kind[len("dict(str, ") : -1])
    elif kind.startswith("KubeflowOrg"):
        model = getattr(models, kind)
        types = {model.attribute_map[name]: each for name, each in model.openapi_types.items()}
        assert set(value) <= set(types), f"{kind} has no {set(value) - set(types)}"
        for name, each in value.items():
            check_model(each, types[name])
    elif kind in ("str", "int", "bool"):
        assert type(value).__name__ == kind
    else:
        assert kind == "V1ObjectMeta" and set(value) == {"name"}


def test_kubernetes_manifests_fit_the_schemas():
    kinds = []
    for document in documents(JOB):
        check_kubernetes(document)
        kinds.append(document["kind"])
    assert kinds == ["Service", "PersistentVolumeClaim", "Job"]


def test_the_tfjob_fits_the_models_of_kubeflow():
    (document,) = documents(TFJOB)
    assert document["apiVersion"] == "kubeflow.org/v1"
    check_model(document, "KubeflowOrgV1TFJob")


def container(path: Path) -> dict:
    document = documents(path)[-1]
    spec = document["spec"]
    if "tfReplicaSpecs" in spec:
        spec = spec["tfReplicaSpecs"]["Worker"]
    return spec["template"]["spec"]["containers"][0]


def commands() -> dict[str, list[str]]:
    """Returns the command line of each file."""
    script = SBATCH.read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^srun .*$", script, re.MULTILINE)
    words = shlex.split(line.removesuffix("&"))
    found = {path.name: container(path) for path in (JOB, TFJOB)}
    return {
        **{name: [*each["command"], *each["args"]] for name, each in found.items()},
        SBATCH.name: words[words.index("t2tp_launch") :],
    }


def word_of(flag: str) -> str:
    (word,) = [word for word in container(JOB)["args"] if word.startswith(f"{flag}=")]
    return word.partition("=")[2]


@pytest.mark.parametrize("name", [JOB.name, TFJOB.name, SBATCH.name])
def test_the_commands_have_flags_that_exist(name):
    words = commands()[name]
    cut = words.index("t2tp_trainer")
    assert words[:3] == ["t2tp_launch", "-n", "1"]
    check_flags("t2tp_launch", words[3:cut])
    check_flags("t2tp_trainer", words[cut + 1 :])
    wanted = words[cut:]
    assert wanted == commands()[JOB.name][-len(wanted) :] or name == SBATCH.name


def test_the_pods_find_each_other():
    document = documents(JOB)[-1]
    addresses, host = hosts_of(word_of("--hosts"), None, {"JOB_COMPLETION_INDEX": "2"})
    name, spec = document["metadata"]["name"], document["spec"]
    service = spec["template"]["spec"]["subdomain"]
    port = container(JOB)["ports"][0]["containerPort"]
    names = [f"{name}-{i}.{service}:{port}" for i in range(spec["completions"])]
    assert addresses == tuple(names) and host == 2


def test_a_pod_lives_while_its_heartbeat_is_young(tmp_path):
    """Runs the probe, which is identical in both files, as Kubernetes runs it."""
    probe = container(JOB)["livenessProbe"]
    assert container(TFJOB)["livenessProbe"] == probe
    directory = f"{word_of('--output_dir')}/"
    heartbeat = tmp_path / "heartbeat.json"
    words = probe["exec"]["command"]
    python, *command = (word.replace(directory, f"{tmp_path}/") for word in words)
    assert python == "python" and str(heartbeat) in command[-1]

    def code() -> int:
        return subprocess.run([sys.executable, *command]).returncode

    assert code() == 0  # No heartbeat is written while data are prepared before training.
    heartbeat.write_text("{}")
    assert code() == 0
    os.utime(heartbeat, times=(time.time() - 1900,) * 2)
    assert code() == 1


def test_the_sbatch_script_is_one_of_bash():
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)
