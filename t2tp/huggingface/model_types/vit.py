"""ViT: sizes of images and patches, and its tensors."""

from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_types import bert
from t2tp.huggingface.part import Config, ConfigPart, Shapes
from t2tp.huggingface.tensor_map import TensorRow, layer_norm

_EMBEDDINGS, _BLOCK = "vit.embeddings", "vit.encoder.layer.{layer}"


def _read(config: Config) -> dict[str, Any]:
    height, width = _pair(config["image_size"])
    patches = _pair(config["patch_size"])
    if patches[0] != patches[1]:
        raise ConversionError(
            f"config.json has patch_size={config['patch_size']}: t2tp has square patches"
        )
    if height % patches[0] or width % patches[0]:
        raise ConversionError(
            f"config.json has patches of {patches[0]} pixels, which do not divide images of"
            f" {height} x {width}"
        )
    return {"image_shape": [height, width, config["num_channels"]], "patch_size": patches[0]}


def _pair(size: int | list[int]) -> list[int]:
    """Returns height and width; a single number means both."""
    both = [size, size] if isinstance(size, int) else size
    if len(both) != 2 or not all(isinstance(each, int) and each > 0 for each in both):
        raise ConversionError(f"config.json has {size!r} as a height and width")
    return both


def _written(hparams: HParams) -> dict[str, Any]:
    if not hparams.image_shape:
        raise ConversionError(
            "the run has image_shape=[] among its hparams, and its images are not square: set"
            " image_shape, which a config.json of type vit needs"
        )
    height, width, channels = hparams.image_shape
    return {
        "image_size": height if height == width else [height, width],
        "num_channels": channels,
        "patch_size": hparams.patch_size,
    }


def tensors(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of all tensors; see `tensor_map`."""
    patches = f"{_EMBEDDINGS}.patch_embeddings.projection"
    return [
        TensorRow(f"{_EMBEDDINGS}.cls_token", "1 1 d_model", "class_token", "d_model"),
        TensorRow(
            f"{_EMBEDDINGS}.position_embeddings", "1 length d_model", "positions", "length d_model"
        ),
        TensorRow(
            f"{patches}.weight",
            "d_model channels kernel_height kernel_width",
            "patches/filters",
            "kernel_height kernel_width channels d_model",
        ),
        TensorRow(f"{patches}.bias", "d_model", "patches/bias", "d_model"),
        *bert.layers(_BLOCK, "attention.attention", hparams.qkv_bias),
        *layer_norm(f"{_BLOCK}.layernorm_before", "layer_{layer}/attention"),
        *layer_norm(f"{_BLOCK}.layernorm_after", "layer_{layer}/feed_forward"),
        *layer_norm("vit.layernorm", "final"),
        *bert.classifier("logits/output", "logits/output_bias"),
    ]


def _from_shapes(shapes: Shapes) -> dict[str, Any]:
    size, _, channels, _ = shapes["patches/filters"]
    patches = shapes["positions"][0] - ("class_token" in shapes)
    side = round(patches**0.5) * size
    # Only for square images the number of patches determines height and width.
    return {"image_shape": [side, side, channels]} if side**2 == patches * size**2 else {}


VIT_IMAGES = ConfigPart(("image_size", "patch_size", "num_channels"), _read, _written, _from_shapes)
