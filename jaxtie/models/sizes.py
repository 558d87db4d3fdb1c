"""What bodies are declared by: their sizes. The bodies themselves are beside. Imports no jax."""

from dataclasses import dataclass

from jaxtie.experiment import check, check_positive_integers


@dataclass(frozen=True)
class Transformer:
    """PyTorch's `TransformerEncoder`, without positions: post-norm, exact GELU, no dropout.

    Attributes:
      layers, heads, width, feedforward: sizes; `heads` divides `width`.
      independent_layers: draw every layer's initial values anew, instead of cloning the first as
        PyTorch does.
    """

    layers: int = 1
    heads: int = 1
    width: int = 4
    feedforward: int = 4
    independent_layers: bool = False

    def __post_init__(self):
        check_positive_integers(self, "layers", "heads", "width", "feedforward")
        check(
            self.width % self.heads == 0,
            f"heads = {self.heads}: expected a divisor of width = {self.width}",
        )


@dataclass(frozen=True)
class LSTM:
    """PyTorch's bidirectional `LSTM`, and a linear map from both directions to the width of the
    tables.

    Attributes:
      layers, width: sizes.
      hidden: width of each direction.
    """

    layers: int = 2
    width: int = 4
    hidden: int = 8

    def __post_init__(self):
        check_positive_integers(self, "layers", "width", "hidden")


@dataclass(frozen=True)
class Mixer:
    """MLP-Mixer with ReLU: per layer an MLP over positions and one over channels, each behind a
    norm and beside a skip.

    Attributes:
      layers, width: sizes.
      tokenwise, channelwise: hidden widths of the MLP over positions and of the one over channels.
    """

    layers: int = 1
    width: int = 4
    tokenwise: int = 4
    channelwise: int = 8

    def __post_init__(self):
        check_positive_integers(self, "layers", "width", "tokenwise", "channelwise")


Body = Transformer | LSTM | Mixer
