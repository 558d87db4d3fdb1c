"""The models in PyTorch, of its own modules where it has them; conversion to and from our trees."""

import copy
from dataclasses import asdict

import numpy as np
import torch
from flax.traverse_util import flatten_dict, unflatten_dict
from torch import nn

from jaxtie import config as sizes


class LSTM(nn.Module):
    def __init__(self, layers: int, width: int, hidden: int):
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, layers, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(2 * hidden, width)

    def forward(self, x_BxLxD: torch.Tensor) -> torch.Tensor:
        return self.linear(self.lstm(x_BxLxD)[0])


class MixerLayer(nn.Module):
    def __init__(self, length: int, width: int, tokenwise: int, channelwise: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokenwise1 = nn.Linear(length, tokenwise)
        self.tokenwise2 = nn.Linear(tokenwise, length)
        self.channelwise1 = nn.Linear(width, channelwise)
        self.channelwise2 = nn.Linear(channelwise, width)

    def forward(self, x_BxLxD: torch.Tensor) -> torch.Tensor:
        x_BxLxD = x_BxLxD + self.tokenwise2(self.tokenwise1(self.norm1(x_BxLxD).mT).relu()).mT
        return x_BxLxD + self.channelwise2(self.channelwise1(self.norm2(x_BxLxD)).relu())


class Mixer(nn.Module):
    def __init__(self, layers: int, length: int, **sizes: int):
        super().__init__()
        self.layers = nn.ModuleList(MixerLayer(length, **sizes) for _ in range(layers))

    def forward(self, x_BxLxD: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x_BxLxD = layer(x_BxLxD)
        return x_BxLxD


def attend(qkv_BxLx3D: torch.Tensor, heads: int) -> torch.Tensor:
    """Return causal attention with rotary positions, from the three projections."""
    q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in qkv_BxLx3D.chunk(3, -1))
    half, places = q.shape[-1] // 2, torch.arange(q.shape[-2]).double()
    angle = places[:, None] / 10_000 ** (torch.arange(half).double() / half)

    def turn(y):
        turned = torch.complex(*y.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], -1)

    attended = nn.functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
    return attended.transpose(1, 2).flatten(2)


class CausalLayer(nn.Module):
    """A pre-norm layer with rotary positions, of PyTorch's parameters."""

    def __init__(self, width: int, heads: int, feedforward: int):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.linear1, self.linear2 = nn.Linear(width, feedforward), nn.Linear(feedforward, width)

    def forward(self, x_BxLxD: torch.Tensor) -> torch.Tensor:
        own = self.self_attn
        qkv = nn.functional.linear(self.norm1(x_BxLxD), own.in_proj_weight, own.in_proj_bias)
        x_BxLxD = x_BxLxD + own.out_proj(attend(qkv, own.num_heads))
        return x_BxLxD + self.linear2(nn.functional.gelu(self.linear1(self.norm2(x_BxLxD))))


class DecoderLayer(nn.Module):
    """A layer of LLaMA, gated or not."""

    def __init__(self, width: int, heads: int, feedforward: int, gated: bool):
        super().__init__()
        self.heads, self.gated = heads, gated
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, (1 + gated) * feedforward, bias=False)
        self.down = nn.Linear(feedforward, width, bias=False)

    def forward(self, x_BxLxD: torch.Tensor) -> torch.Tensor:
        x_BxLxD = x_BxLxD + self.out(attend(self.qkv(self.norm1(x_BxLxD)), self.heads))
        hidden = self.up(self.norm2(x_BxLxD))
        if not self.gated:
            return x_BxLxD + self.down(nn.functional.gelu(hidden))
        gate, hidden = hidden.chunk(2, -1)
        return x_BxLxD + self.down(nn.functional.silu(gate) * hidden)


def make_body(config: sizes.Body, length: int) -> nn.Module:
    """Return the body of a configuration, from BxLxD to BxLxD."""
    match config:
        case sizes.LSTM():
            return LSTM(**asdict(config))
        case sizes.Mixer():
            return Mixer(length=length, **asdict(config))
    own = config.width, config.heads, config.feedforward
    layer = nn.TransformerEncoderLayer(*own, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)


class Reference(nn.Module):
    """Logits BxPxV at masked positions. Tied: `output` is the very parameter `input`."""

    def __init__(self, config: sizes.Body, *, tied: bool, vocabulary: int = 7, length: int = 8):
        super().__init__()
        self.input = nn.Embedding(vocabulary, config.width).weight
        self.output = self.input if tied else nn.Embedding(vocabulary, config.width).weight
        self.body = make_body(config, length)

    def forward(self, tokens_BxL: torch.Tensor, at_BxP: torch.Tensor) -> torch.Tensor:
        h_BxLxD = self.body(nn.functional.embedding(tokens_BxL, self.input))
        h_BxPxD = torch.take_along_dim(h_BxLxD, at_BxP[..., None], dim=1)
        return h_BxPxD @ self.output.T

    def loss(
        self, tokens_BxL: torch.Tensor, at_BxP: torch.Tensor, target_BxP: torch.Tensor
    ) -> torch.Tensor:
        logits_BxPxV = self(tokens_BxL, at_BxP)
        return nn.functional.cross_entropy(logits_BxPxV.flatten(0, 1), target_BxP.flatten())


def place(name: str) -> tuple[str, ...]:
    """Return the path in our tree, such as (body, layer_0, out_proj_weight)."""
    if not name.startswith("body."):
        return "embedding", name
    name = name.removeprefix("body.").replace("self_attn.", "").removeprefix("lstm.")
    if name.startswith("layers."):
        _, layer, parameter = name.split(".", 2)
        return "body", f"layer_{layer}", parameter.replace(".", "_")
    return "body", name.replace(".", "_")


def _tree(model: Reference, read) -> dict:
    return unflatten_dict(
        {place(name): read(p).numpy().copy() for name, p in model.named_parameters()}
    )


def parameters(model: Reference) -> dict:
    """Return the parameters as our tree."""
    return _tree(model, lambda p: p.detach())


def gradients(model: Reference) -> dict:
    """Return the gradients as our tree."""
    return _tree(model, lambda p: p.grad)


def load(model: Reference, tree: dict) -> Reference:
    """Return a copy of the model with the values, and the precision, of our tree."""
    leaves = {path: torch.tensor(np.asarray(leaf)) for path, leaf in flatten_dict(tree).items()}
    model = copy.deepcopy(model).to(next(iter(leaves.values())).dtype)
    named = {place(name): p for name, p in model.named_parameters()}
    assert named.keys() == leaves.keys(), named.keys() ^ leaves.keys()
    with torch.no_grad():
        for path, parameter in named.items():
            assert parameter.shape == leaves[path].shape, path
            parameter.copy_(leaves[path])
    return model


def tensors(batch) -> tuple[torch.Tensor, ...]:
    """Return integer arrays as torch indexes with them."""
    return tuple(torch.tensor(np.asarray(array), dtype=torch.int64) for array in batch)
