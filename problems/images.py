"""Problems with images, to classify or to generate.

`ImageGenerationProblem` generates images autoregressively, one channel of one pixel at a time.

The stored columns are `image` (uint8, or the bytes of a JPEG file) and, for classes, `targets`.
"""

import io
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from t2tp.optional_import import optional_import
from t2tp.problems.data.batch_stream import EMPTY, FeatureSpec
from t2tp.problems.data.columns import Column
from t2tp.problems.data.fields import FLOAT, INT, Field, FieldSource, NumberField, WeightField
from t2tp.problems.data.row_plan import RowPlan
from t2tp.problems.data.sample import Sample, StoredExample
from t2tp.problems.generated_images import GeneratedImages
from t2tp.problems.problem import NO_EOS, AnyPath, Problem
from t2tp.problems.text_to_class import check_label

DIMENSIONS = ("batch", "height", "width", "channels")


@dataclass(frozen=True, eq=False)
class PixelField:
    """Images: [batch, height, width, channels].

    Attributes:
      column: the stored images.
      shape: height, width and channels.
      scale: divisor of the values, to read float32 from 0 to 1; None: read int32.
      decode: converts a stored image to uint8 [height, width, channels].
      in_threads: whether to decode the images of a batch in parallel.
    """

    column: Column
    shape: tuple[int, int, int]
    scale: float | None
    decode: Callable[[np.ndarray], np.ndarray]
    in_threads: bool = False

    @property
    def spec(self) -> FeatureSpec:
        """The spec of the images."""
        return pixel_spec(self.scale)

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads slices of the images of rows; decodes the full images."""
        images = np.zeros((len(rows), *self.shape), np.uint8)

        def decode(index: int) -> None:
            if rows[index] != EMPTY:
                images[index] = self.decode(self.column.example(int(rows[index])))

        # Pillow releases the GIL while it decodes, so that threads run in parallel.
        each = _decoders().map if self.in_threads else map
        deque(each(decode, range(len(rows))), maxlen=0)
        values = images[(slice(None), *parts)]
        if self.scale is None:
            return values.astype(INT)
        return values.astype(FLOAT) / FLOAT.type(self.scale)


@cache
def _decoders() -> ThreadPoolExecutor:
    """Returns the pool of decoding threads, shared by all fields of this process."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "decode")


def pixel_spec(scale: float | None) -> FeatureSpec:
    """Returns the spec of images."""
    return FeatureSpec(DIMENSIONS, INT if scale is None else FLOAT)


class ImageProblem(Problem):
    """Images of one size. A sample has "image", integers [height, width, channels].

    Attributes:
      image_shape: height, width and channels.
      levels: number of possible values of a pixel's channel, which are 0 to `levels` - 1.
      stored_as_jpeg: whether to store images as JPEG files of quality 95: about ten times smaller,
        but slower to read, and lossy.
    """

    image_shape: tuple[int, int, int]
    levels = 256
    stored_as_jpeg = False

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtype of the images."""
        return {"image": np.dtype(np.uint8)}

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns a function that checks and encodes an image."""
        return lambda sample: StoredExample({"image": self._stored_image(sample["image"])})

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns the decoder of an image, uint8 [height, width, channels]."""
        return lambda columns: {"image": self._image(columns["image"])}

    def _stored_image(self, image: np.ndarray) -> np.ndarray:
        image = np.asarray(image)
        if image.shape != self.image_shape:
            raise ValueError(
                f"{self.name}: an image has shape {image.shape}, not {self.image_shape}"
            )
        if image.min() < 0 or image.max() >= self.levels:
            raise ValueError(
                f"{self.name}: an image has values from {image.min()} to {image.max()}, not below "
                f"{self.levels}"
            )
        if self.stored_as_jpeg:
            return np.frombuffer(_to_jpeg(image.astype(np.uint8)), np.uint8)
        return image.astype(np.uint8).ravel()

    def _image(self, values: np.ndarray) -> np.ndarray:
        if self.stored_as_jpeg:
            return _from_jpeg(values.tobytes(), self.image_shape)
        return values.reshape(self.image_shape)

    def image_field(self, column: Column, scale: float | None) -> PixelField:
        """Returns the field that reads the images; `scale` as for `PixelField`."""
        return PixelField(column, self.image_shape, scale, self._image, self.stored_as_jpeg)


class Image2ClassProblem(ImageProblem):
    """Image to class. A sample has "image" and "label", the index of its class.

    Batches have inputs (float32, 0 to 1), targets (the class) and weights.
    """

    metric_names = ("loss", "accuracy", "accuracy_top5", "neg_log_perplexity")
    features = {"inputs": pixel_spec(1.0), "targets": NumberField.spec, "weights": WeightField.spec}

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtypes of the images and classes."""
        return {**super().columns(directory), "targets": np.dtype(np.int32)}

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns a function that checks and encodes an image and its class."""

        def encode(sample: Sample) -> StoredExample:
            label = np.array([check_label(sample["label"], self.class_names)])
            return StoredExample({"image": self._stored_image(sample["image"]), "targets": label})

        return encode

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns the decoder of an image and its class."""
        decode = super().decoder(directory)
        return lambda columns: {**decode(columns), "label": int(columns["targets"][0])}

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of classes."""
        return {"targets": len(self.class_names)}

    def examples(self, data_dir: AnyPath, split: str, length: int) -> FieldSource:
        """Returns the images of a split; see `Problem.examples`."""
        stored = self.stored(data_dir, split)
        count = len(stored["image"])
        plan = RowPlan(count)
        fields: dict[str, Field] = {
            "inputs": self.image_field(stored["image"], self.levels - 1.0),
            "targets": NumberField(stored["targets"], plan),
            "weights": WeightField(),
        }
        return FieldSource(count, fields)


class ImageGenerationProblem(ImageProblem):
    """Images as sequences of values; each value is predicted from the earlier values.

    Batches have targets, the pixels' values (int32), and weights.
    """

    metric_names = ("loss", "bits_per_dim", "accuracy")
    features = {"targets": pixel_spec(None), "weights": WeightField.spec}
    eos_id = NO_EOS  # all images have the same size

    @property
    def generated_images(self) -> GeneratedImages:
        """The problem's shape and levels."""
        return GeneratedImages(self.image_shape, self.levels)

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of values of a channel."""
        return {"targets": self.levels}

    def examples(self, data_dir: AnyPath, split: str, length: int) -> FieldSource:
        """Returns the images of a split; see `Problem.examples`."""
        column = self.stored(data_dir, split)["image"]
        fields: dict[str, Field] = {
            "targets": self.image_field(column, None),
            "weights": WeightField(),
        }
        return FieldSource(len(column), fields)


def _to_jpeg(image: np.ndarray) -> bytes:
    pillow = _pillow()
    file = io.BytesIO()
    pillow.fromarray(image).save(file, "jpeg", quality=95)
    return file.getvalue()


def _from_jpeg(file: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    return np.asarray(_pillow().open(io.BytesIO(file)).convert("RGB")).reshape(shape)


def shrink_to_cover(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scales an image to the smallest size that covers height and width, and crops the center.

    `image` is uint8 [any, any, 3]; the result is uint8 [height, width, 3].
    """
    pillow = _pillow()
    scale = max(height / image.shape[0], width / image.shape[1])
    size = (max(width, round(image.shape[1] * scale)), max(height, round(image.shape[0] * scale)))
    x, top = (size[0] - width) // 2, (size[1] - height) // 2
    scaled = pillow.fromarray(image).resize(size, pillow.Resampling.BICUBIC)
    return np.asarray(scaled.crop((x, top, x + width, top + height)))


def _pillow() -> Any:
    with optional_import("images are decoded and scaled by Pillow: pip install -e '.[images]'"):
        from PIL import Image
    return Image
