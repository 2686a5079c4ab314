"""Pipeline stages: the layers of a model, split over an axis of the mesh.

With the layout rule `layers:stage`, a processor's coordinate on the axis `stage` is its stage. The
processor has only the layers of this stage. No tensor has the dimension `layers`. The variables of
a layer exist on the processors of its stage, with the same names and shapes as without stages.
"""

from dataclasses import dataclass

LAYERS = "layers"


@dataclass(frozen=True)
class Pipeline:
    """How a pipeline runs.

    Attributes:
      schedule: name of a registered schedule, or the path of a `.csv` file; see
        `t2tp.pipeline.schedules`.
      chunks: number of chunks into which each stage's layers are cut.
      layers: the number of layers of each stage in chunk 0, then of each stage in chunk 1, and so
        on: `7,8,8,7`. Empty: as equal as possible.
    """

    schedule: str = "1f1b"
    chunks: int = 1
    layers: str = ""
