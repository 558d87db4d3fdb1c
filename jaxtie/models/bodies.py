"""From declared sizes to the body that has them."""

import dataclasses

import flax.linen as nn

from jaxtie.models.lstm import LSTMBody
from jaxtie.models.mixer import MixerBody
from jaxtie.models.sizes import LSTM, Body, Mixer, Transformer
from jaxtie.models.transformer import TransformerBody


def build_body(sizes: Body, *, accelerated: bool = False) -> nn.Module:
    """A body of these sizes; the contract of a body is in `jaxtie.models.masked_lm`.

    Args:
      accelerated: for a GPU or TPU, where few and large operations are faster.
    """
    match sizes:
        case Transformer():
            return TransformerBody(**dataclasses.asdict(sizes))
        case LSTM():
            return LSTMBody(sizes.layers, sizes.hidden, accelerated)
        case Mixer():
            return MixerBody(sizes.layers, sizes.tokenwise, sizes.channelwise)
