"""Pipeline stages: the layers of a model, split over an axis of the mesh.

With the layout rule `layers:stage`, a processor's coordinate on the axis `stage` is its stage. The
processor has only the layers of this stage. No tensor has the dimension `layers`. The variables of
a layer exist on the processors of its stage, with the same names and shapes as without stages.
"""

from dataclasses import dataclass

from t2tp import upstream

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


def names_by_stage(mesh: upstream.Mesh, name: str) -> tuple[str | None, ...] | None:
    """Returns the names of a layer's variable or operation on each stage.

    All stages share one graph, which has the layers of one stage. A variable's name in the graph is
    its name on the first stage: `layer_00/w`. On another stage its name is, for example,
    `layer_06/w`, or None if the stage has no such layer.

    Returns:
      the names by stage, or None if `name` belongs to no layer, or there are no stages.
    """
    scopes: dict[str, tuple[str | None, ...]] = getattr(mesh, "scopes_by_stage", {})
    for scope, names in scopes.items():
        if name.startswith(f"{scope}/"):
            rest = name[len(scope) :]
            return tuple(None if own is None else own + rest for own in names)
    return None


def is_of_stage(variable: upstream.Variable) -> bool:
    """Whether each stage of a pipeline has a variable of its own under this name."""
    return names_by_stage(variable.mesh, variable.name) is not None


def count_of_stages(variable: upstream.Variable) -> int:
    """Returns how many stages have a variable of their own under this name; 0: it is shared."""
    return sum(name is not None for name in names_by_stage(variable.mesh, variable.name) or ())
