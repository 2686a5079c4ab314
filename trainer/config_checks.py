"""Whether a config says of a training what its hparams say."""

from __future__ import annotations

from typing import Any

from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.trainer.run_config import RunConfig


def check_precision(config: RunConfig, hparams: Any, takes_config: bool) -> None:
    """Refuses a precision of which the model function would not know.

    Args:
      config: of the run.
      hparams: of the model.
      takes_config: whether the model function is given the config.

    Raises:
      ValueError: they contradict.
    """
    wanted = config.precision
    if hparams is not None and "activation_dtype" in hparams:
        told = hparams.get("activation_dtype")
        if told != wanted:
            raise ValueError(
                f"the config's precision is {wanted}, and the hparam activation_dtype is {told}:"
                " make the config with RunConfig.of(hparams, ...)"
            )
    elif wanted != "float32" and not takes_config:
        raise ValueError(
            f"the config's precision is {wanted}, and the model function has no parameter `config`"
            " to read it from"
        )


def check_mesh(config: RunConfig, hparams: Any) -> None:
    """Refuses hparams that say another mesh and layout than the config's, which count.

    Raises:
      LayoutError: a mesh shape or a layout cannot be read.
      ValueError: they contradict.
    """
    if not isinstance(hparams, HParams) or "mesh_shape" not in hparams or "layout" not in hparams:
        return
    if _splitting(config) != _splitting(hparams):
        raise ValueError(
            f"the config says mesh_shape={config.mesh_shape!r} and layout={config.layout!r}, and"
            f" the hparams mesh_shape={hparams.mesh_shape!r} and layout={hparams.layout!r}: make"
            " the config with RunConfig.of(hparams, ...)"
        )


def _splitting(said: RunConfig | HParams) -> tuple[list[tuple[str, int]], set[tuple[str, str]]]:
    """The axes that have several processors, and the rules that lead to them."""
    layout = Layout(said.mesh_shape, said.layout)
    axes = {axis.name: axis.size for axis in layout.mesh_shape.dims if axis.size > 1}
    return list(axes.items()), {(dim, axis) for dim, axis in layout.rules if axis in axes}


def check_skips(config: RunConfig, hparams: Any) -> None:
    """Refuses a config that counts on a guard in the graph which hparams do not ask for, or the
    other way round.

    Raises:
      ValueError: they contradict.
    """
    if not isinstance(hparams, HParams) or "skip_nonfinite_steps" not in hparams:
        return
    if (config.on_nonfinite == "skip") != bool(hparams.skip_nonfinite_steps):
        raise ValueError(
            f"the config says on_nonfinite={config.on_nonfinite}, and the hparam"
            f" skip_nonfinite_steps is {hparams.skip_nonfinite_steps}: make the config with"
            " RunConfig.of(hparams, ...)"
        )
