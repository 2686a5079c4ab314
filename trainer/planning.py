"""`t2tp.plan`: predicts the cost of training a registered model on a cluster."""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

import t2tp.hparams
import t2tp.models  # noqa: F401  (these register what they define)
from t2tp import mtf, registry
from t2tp.argument_types import checked
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.models.image_classifier import ImageClassifier
from t2tp.planner import ClusterFile, Plan, Request
from t2tp.planner.depth import depths
from t2tp.problems.images import ImageProblem
from t2tp.problems.problem import Problem
from t2tp.program.program import Feature, StepFn
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from t2tp.trainer.other_run import OtherRun

# Height, width and channels of ImageNet's images.
IMAGE_SHAPE = (224, 224, 3)
# Length of the learning-rate schedule, which does not change a step's cost.
_TRAIN_STEPS = 100_000


@checked
def plan(
    model: str,
    hparams: HParams | str,
    *,
    cluster: str | ClusterFile,
    vocab_size: int,
    mesh_shape: str | None = None,
    layout: str | None = None,
    stack: str = "",
    image_shape: Sequence[int] = IMAGE_SHAPE,
    teacher: str = "",
) -> Plan:
    """Predicts time, memory and traffic of a training step; needs no devices.

    Args:
      model: name of a registered model.
      hparams: hparams of the model, or name of a registered set.
      cluster: name or path of a cluster file, or a loaded `ClusterFile`.
      vocab_size: number of tokens, classes or pixel values.
      mesh_shape: by default the hparams' `mesh_shape`.
      layout: layout rules, by default the hparams' `layout`.
      stack: name of a software stack, by default the stack that the cluster file selects.
      image_shape: height, width and channels of images.
      teacher: a run or a Hugging Face directory, from whose predictions the model learns.

    Raises:
      ClusterFileError: the cluster is unknown or its file invalid.
      LayoutError: the layout does not fit the model.
      ValueError, LookupError: the model, the set or an hparam is unknown or invalid.
      UsageError: the teacher cannot be read.
    """
    if not isinstance(cluster, ClusterFile):
        cluster = ClusterFile.load(cluster, stack)
    hparams = registry.hparams(hparams) if isinstance(hparams, str) else hparams
    given = {"mesh_shape": mesh_shape, "layout": layout}
    hparams = hparams.with_values({name: v for name, v in given.items() if v is not None})
    return request(model, hparams, vocab_size, image_shape, teacher).plan(cluster)


def request(
    model: str,
    hparams: HParams,
    vocab_size: int,
    image_shape: Sequence[int] = IMAGE_SHAPE,
    teacher: str = "",
) -> Request:
    """Returns the request for a plan; see `plan`."""
    model_class = registry.model(model)
    sizes = {"targets": vocab_size}
    if "inputs" in model_class.takes and not issubclass(model_class, ImageClassifier):
        sizes["inputs"] = vocab_size

    def features(hparams: HParams) -> Mapping[str, Feature]:
        batch = mtf.Dimension("batch", sequences_per_batch(hparams, Layout.from_hparams(hparams)))
        if issubclass(model_class, ImageClassifier):
            return {
                "inputs": Feature(_image(batch, image_shape)),
                "targets": Feature(mtf.Shape([batch]), tf.int32),
                "weights": Feature(mtf.Shape([batch])),
            }
        if "image_shape" in hparams:
            pixels = _image(batch, hparams.image_shape)
            return {"targets": Feature(pixels, tf.int32), "weights": Feature(mtf.Shape([batch]))}
        shape = mtf.Shape([batch, mtf.Dimension("length", hparams.max_length)])
        names = model_class(hparams, sizes).takes
        return {name: Feature(shape, tf.int32) for name in names}

    teacher_run = OtherRun.open("teacher", teacher) if teacher else None

    def training_step(hparams: HParams, share: float) -> StepFn:
        shortened = None  # The teacher's class, and its hparams with a share of its layers.
        if teacher_run is not None:
            depth = depths(teacher_run.hparams)
            layers = {name: math.ceil(share * count) for name, count in depth.items()}
            shortened = teacher_run.model_class, teacher_run.hparams.with_values(layers)
        model_fn = model_fn_of(model_class, sizes, _TRAIN_STEPS, shortened)
        return lambda mesh, fed: model_fn(mesh, fed, ModeKeys.TRAIN, hparams).outputs()

    return Request(model, hparams, features, training_step)


def image_shape_of(problem: Problem) -> Sequence[int]:
    """Returns height, width and channels of a problem's images, or of ImageNet's if it has none."""
    return problem.image_shape if isinstance(problem, ImageProblem) else IMAGE_SHAPE


def _image(batch: mtf.Dimension, image_shape: Sequence[int]) -> mtf.Shape:
    sizes = zip(("height", "width", "channels"), image_shape, strict=True)
    return mtf.Shape([batch, *(mtf.Dimension(name, size) for name, size in sizes)])
