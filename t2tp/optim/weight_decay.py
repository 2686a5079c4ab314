"""Weight decay where the optimizer has none."""

from __future__ import annotations

from t2tp.hparam import HParams


def refuse_weight_decay(hparams: HParams) -> None:
    """Refuses a `weight_decay` that would be ignored.

    Raises:
      ValueError: it is not 0.
    """
    if hparams.weight_decay:
        raise ValueError(
            f"optimizer {hparams.optimizer!r} has no weight decay, and weight_decay is"
            f" {hparams.weight_decay}; set weight_decay=0, or take optimizer=adam"
        )
