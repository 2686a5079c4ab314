"""Checks that the config of a training agrees with its hparams."""

from __future__ import annotations

from typing import Any

from t2tp.hparam import HParams
from t2tp.trainer.run_config import RunConfig


def check_precision(config: RunConfig, hparams: Any, takes_config: bool) -> None:
    """Checks that the config's precision reaches the model function.

    Args:
      config: of the run.
      hparams: of the model.
      takes_config: whether the model function has a parameter `config`.

    Raises:
      ValueError: config and hparams disagree, or the model function cannot learn of a precision
        other than float32.
    """
    precision = config.precision
    if hparams is not None and "activation_dtype" in hparams:
        dtype = hparams.get("activation_dtype")
        if dtype != precision:
            raise ValueError(
                f"the config's precision is {precision}, and the hparam activation_dtype is"
                f" {dtype}: make the config with RunConfig.from_hparams(hparams, ...)"
            )
    elif precision != "float32" and not takes_config:
        raise ValueError(
            f"the config's precision is {precision}, and the model function has no parameter"
            " `config` to read it from"
        )


def check_skips(config: RunConfig, hparams: Any) -> None:
    """Checks that `on_nonfinite=skip` is set exactly if the hparams add the step guard.

    Raises:
      ValueError: config and hparams disagree.
    """
    if not isinstance(hparams, HParams) or "skip_nonfinite_steps" not in hparams:
        return
    if (config.on_nonfinite == "skip") != bool(hparams.skip_nonfinite_steps):
        raise ValueError(
            f"the config says on_nonfinite={config.on_nonfinite}, and the hparam"
            f" skip_nonfinite_steps is {hparams.skip_nonfinite_steps}: make the config with"
            " RunConfig.from_hparams(hparams, ...)"
        )
