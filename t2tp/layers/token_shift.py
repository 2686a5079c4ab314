"""Token shift: to each token's vector, a learned share of the previous token's vector is added.

B. Peng et al., "RWKV: Reinventing RNNs for the Transformer Era" (arXiv:2305.13048), section 3.1,
shift the inputs of all blocks. Here embeddings are shifted, and keys and values (M. Xu et al., "KV
Shifting Attention Enhances Language Modeling", arXiv:2411.19574). A query then finds what followed
the same token before with one layer of attention, not two, so that a model learns to copy repeated
text after far fewer steps. The shares of keys and values are split like the heads, so that tensor
parallelism has no further all-reduce.
"""

from t2tp import mtf
from t2tp.layers.heads import padded_to
from t2tp.layers.passes import DecodeStep, ForwardPass, Prefill
from t2tp.layers.sequence_parallel import between_blocks
from t2tp.layers.shares import plus_share
from t2tp.ops.gather import gather
from t2tp.ops.previous import previous
from t2tp.ops.scatter_update import scatter_update

# The initial value of all shares.
INITIAL_SHARE = 0.5


def shifted(x: mtf.Tensor, forward: ForwardPass, key: str, name: str) -> mtf.Tensor:
    """Adds to each vector a share of its predecessor in the same segment, if there is one.

    Args:
      x: [batch..., length, features], also with heads before the length; in a decode step without
        the length.
      forward: the forward pass. `Prefill` stores `x`, zero-padded, as `<key>/<name>`; a decode step
        extends what is stored.
      key: the layer's key in the decoding state.
      name: the variable with the share of each feature of each head.

    Returns:
      a tensor like `x`.
    """
    before = _previous(x, forward, f"{key}/{name}")
    if isinstance(forward, DecodeStep):
        of_tokens = forward.positions.shape.dims
    else:
        of_tokens = [*forward.sequence.positions.shape.dims[:-1], x.shape.dims[-2]]
    dims = [dim for dim in x.shape.dims if dim not in of_tokens]
    return plus_share(x, before, name, dims, INITIAL_SHARE)


def _previous(x: mtf.Tensor, forward: ForwardPass, key: str) -> mtf.Tensor:
    """Returns the vector of each token's predecessor in its segment; zeros for a first token."""
    if isinstance(forward, DecodeStep):
        length = forward.state[key].shape.dims[-2]
        stored = scatter_update(forward.state[key], x, forward.positions, length)
        forward.state[key] = stored
        return gather(stored, forward.positions - 1, length, x.shape)  # Zeros for position -1.
    *_, length, _ = x.shape.dims
    if isinstance(forward, Prefill):
        forward.state[key] = padded_to(x, length, forward.length)
    segments = forward.sequence.segments
    if segments is not None and length != forward.sequence.length:
        segments = between_blocks(segments)
    return previous(x, length, segments)
