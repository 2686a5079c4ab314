"""A small text or image model of any family, and its batch."""

from t2tp import registry
from tests.models import small_image_transformer, small_images
from tests.models.small_transformers import BERTS, FAMILIES

TRANSFORMERS = {**FAMILIES, **BERTS}
IMAGE_SETS = {"mlp": "mlp_tiny", "vit": "vit_tiny", "resnet": "mtf_resnet_digits"}
EVERY = [*TRANSFORMERS, *IMAGE_SETS, "images"]


def small_model(family, **changes):
    """Returns a model with changed hparams, a batch, and the batch's features."""
    if family in TRANSFORMERS:
        known = TRANSFORMERS[family]
        return known.make(**changes), known.batch(), known.features()
    if family == "images":
        hparams = small_image_transformer.make("local_2d", **changes)
        batch, levels = small_image_transformer.make_batch(), small_image_transformer.LEVELS
        model = "mtf_image_transformer"
    else:
        hparams = small_images.make_hparams(IMAGE_SETS[family], **changes)
        batch, levels = small_images.make_batch(), small_images.CLASSES
        model = registry.model_of_hparams(IMAGE_SETS[family])
    made = registry.model(model)(hparams, {"targets": levels})
    return made, batch, small_images.features_of(batch)
