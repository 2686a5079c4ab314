"""The step of a decoding program: from rows that begin somewhere to what the model writes."""

from __future__ import annotations

from collections.abc import Mapping

from t2tp import mtf
from t2tp.decoding.beam_search import search
from t2tp.decoding.one_path import follow_one_path
from t2tp.decoding.options import BEAM, DecodeOptions
from t2tp.decoding.rows import ROW_FEATURES, Rows
from t2tp.mesh.program import Mesh
from t2tp.models.autoregressive import AutoregressiveModel


def decode(
    model: AutoregressiveModel,
    mesh: Mesh,
    features: Mapping[str, mtf.Tensor],
    options: DecodeOptions,
) -> dict[str, mtf.Tensor]:
    """Builds the whole of decoding a batch: one pass over what is given, and one loop.

    Args:
      model: a model that writes.
      mesh: the program's mesh.
      features: those of `row_features`, and what the model reads besides.
      options: how to decode.

    Returns:
      tensors by name; see `one_path.follow_one_path` and `beam_search.search`.
    """
    rows = Rows.of(features)
    read = {name: tensor for name, tensor in features.items() if name not in ROW_FEATURES}
    state = model.begin(mesh, read, rows.length)
    find = search if options.method == BEAM else follow_one_path
    return find(model, mesh, rows, state, options)
