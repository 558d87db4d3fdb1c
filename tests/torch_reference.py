"""The model in PyTorch, by its own `TransformerEncoder`, and the way between its parameters and a jaxtie tree."""

import copy

import numpy as np
import torch
from flax.traverse_util import flatten_dict, unflatten_dict
from torch import nn


class Reference(nn.Module):
    """Logits BxPxV at masked positions. Tied: `output` is the very parameter `input`."""

    def __init__(self, *, layers: int, heads: int, width: int, feedforward: int, tied: bool, vocabulary: int = 7):
        super().__init__()
        self.input = nn.Embedding(vocabulary, width).weight
        self.output = self.input if tied else nn.Embedding(vocabulary, width).weight
        layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout=0.0, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens_BxL: torch.Tensor, at_BxP: torch.Tensor) -> torch.Tensor:
        h_BxLxD = self.body(nn.functional.embedding(tokens_BxL, self.input))
        h_BxPxD = torch.take_along_dim(h_BxLxD, at_BxP[..., None], dim=1)
        return h_BxPxD @ self.output.T

    def loss(self, tokens_BxL: torch.Tensor, at_BxP: torch.Tensor, target_BxP: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self(tokens_BxL, at_BxP).flatten(0, 1), target_BxP.flatten())


def place(name: str) -> tuple[str, ...]:
    """Path in a jaxtie tree: of body.layers.0.self_attn.out_proj.weight, (body, layer_0, out_proj_weight)."""
    if not name.startswith("body."):
        return "embedding", name
    layer, parameter = name.removeprefix("body.layers.").split(".", 1)
    return "body", f"layer_{layer}", parameter.removeprefix("self_attn.").replace(".", "_")


def _tree(model: Reference, read) -> dict:
    return unflatten_dict({place(name): read(p).numpy().copy() for name, p in model.named_parameters()})


def parameters(model: Reference) -> dict:
    """The parameters as a jaxtie tree of arrays."""
    return _tree(model, lambda p: p.detach())


def gradients(model: Reference) -> dict:
    """The gradients as a jaxtie tree of arrays."""
    return _tree(model, lambda p: p.grad)


def load(model: Reference, tree: dict) -> Reference:
    """A copy of the model with the values, and the precision, of a jaxtie tree."""
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
    """Integer arrays as torch indexes with them."""
    return tuple(torch.tensor(np.asarray(array), dtype=torch.int64) for array in batch)
