"""The step of a decoding program: continues prompts."""

from collections.abc import Mapping

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.decoding.beam_search import search
from t2tp.decoding.greedy_and_sampling import greedy_or_sample
from t2tp.decoding.options import BEAM, DecodeOptions
from t2tp.decoding.prompt_batch import ROW_FEATURES, PromptBatch
from t2tp.models.autoregressive import AutoregressiveModel


def decode(
    model: AutoregressiveModel,
    mesh: Mesh,
    features: Mapping[str, mtf.Tensor],
    options: DecodeOptions,
) -> dict[str, mtf.Tensor]:
    """Builds the decoding of a batch: a prefill and a loop of decode steps.

    The features are the model's features, and those that `row_features` declares. For the result
    see `greedy_or_sample` and `search`.
    """
    rows = PromptBatch.from_features(features)
    prompt_features = {
        name: tensor for name, tensor in features.items() if name not in ROW_FEATURES
    }
    state = model.prefill(mesh, prompt_features, rows.length)
    find = search if options.method == BEAM else greedy_or_sample
    return find(model, mesh, rows, state, options)
