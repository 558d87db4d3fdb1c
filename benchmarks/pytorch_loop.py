"""The main experiment as a careful PyTorch loop: the baseline that `throughput.py` runs beside jaxtie.

Samples are drawn as tensors, the model is `torch.nn.TransformerEncoder` itself, the optimiser `torch.optim.AdamW` in its
fused form, nothing is copied to Python within the timed loop. One seed, one thread: run one process a core.

    python benchmarks/pytorch_loop.py --steps 2000 --arm untied
"""

import argparse
import random
import time

import torch
from torch import nn


def training_strings() -> tuple[torch.Tensor, torch.Tensor]:
    """Bits (114, 7) of the training strings and their parity labels (114, 1)."""
    numbers = list(range(2**7 - 1))
    random.Random(14).shuffle(numbers)
    bits = torch.tensor([[int(bit) for bit in f"{number:07b}"] for number in numbers[:114]])
    return bits, 4 + bits.sum(1, keepdim=True) % 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="timed steps")
    parser.add_argument("--arm", choices=("tied", "untied"), default="untied")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)

    bits, label = training_strings()
    second = torch.tensor([0.9, 0.5])[bits]  # probability of Y for a zero, of B for a one
    rows = torch.arange(len(bits))
    embedding = nn.Embedding(7, 4)
    output = embedding.weight if options.arm == "tied" else nn.Parameter(torch.randn(7, 4))
    layer = nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    parameters = [*embedding.parameters(), *encoder.parameters()] + [output] * (options.arm == "untied")
    optimiser = torch.optim.AdamW(parameters, 5e-4, eps=1e-12, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10_000, 1e-5)

    def step() -> None:
        tokens = torch.cat([2 * bits + torch.bernoulli(second).long(), label], 1)
        at = torch.randint(7, (len(bits),))
        target = tokens[rows, at]
        tokens[rows, at] = 6
        hidden = encoder(embedding(tokens))[rows, at]
        loss = nn.functional.cross_entropy(hidden @ output.T, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()

    for _ in range(100):
        step()
    began = time.perf_counter()
    for _ in range(options.steps):
        step()
    print(options.steps / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
