"""Token shift: a layer reads a learned share of the previous token, too.

B. Peng et al., "RWKV: Reinventing RNNs for the Transformer Era" (arXiv:2305.13048), section 3.1,
shift the inputs of all blocks. Here the embeddings are shifted, and the inputs of keys and values
(M. Xu et al., "KV Shifting Attention Enhances Language Modeling", arXiv:2411.19574). A query then
finds the tokens that followed the same token before with one layer of attention, not two, so that a
model learns to copy repeated text after far fewer steps.
"""

from t2tp import mtf
from t2tp.layers import variables
from t2tp.layers.heads import padded_to
from t2tp.layers.passes import DecodeStep, ForwardPass, Prefill
from t2tp.layers.sequence_parallel import between_blocks
from t2tp.ops.gather import gather
from t2tp.ops.scatter_update import scatter_update

# A learned factor is initially this.
INITIAL_SHARE = 0.5


def previous(x: mtf.Tensor, forward: ForwardPass, name: str) -> mtf.Tensor:
    """Returns the vector of each token's predecessor in its segment; zeros for a first token.

    Args:
      x: [batch..., length, features]; in a decode step [batch..., features].
      forward: the forward pass. `Prefill` stores `x`, zero-padded, which a decode step extends.
      name: the key of `x` in the decoding state.
    """
    if isinstance(forward, DecodeStep):
        length = forward.state[name].shape.dims[-2]
        stored = scatter_update(forward.state[name], x, forward.positions, length)
        forward.state[name] = stored
        return gather(stored, forward.positions - 1, length, x.shape)  # Zeros for position -1.
    *_, length, _ = x.shape.dims
    before = mtf.shift(x, 1, length, wrap=False)
    if isinstance(forward, Prefill):
        forward.state[name] = padded_to(x, length, forward.length)
    segments = forward.sequence.segments
    if segments is None:
        return before
    if length != forward.sequence.length:
        segments = between_blocks(segments)
    continues = mtf.equal(segments, mtf.shift(segments, 1, length, wrap=False))
    return before * mtf.cast(continues, x.dtype)


def shifted(x: mtf.Tensor, before: mtf.Tensor, name: str) -> mtf.Tensor:
    """Returns `x + share * before`, with the variable `name` [features] as the share."""
    share = variables.norm(x.mesh, name, x.shape.dims[-1:], INITIAL_SHARE)
    return x + before * mtf.cast(share, x.dtype)
