"""EXor's training as a careful PyTorch loop: the baseline of `throughput.py`.

Samples are drawn as tensors, the models are PyTorch's own modules (those of
`tests/helpers/torch_reference.py`, which tests compare with jaxtie's), the optimizer is
`torch.optim.AdamW` in its fused form, and nothing is copied to Python within the timed loop. It
uses one thread: run one process per core; or a GPU, if PyTorch finds one. It prints seed-steps per
second.

    # one seed; 32 seeds at once by torch.func.vmap; the same in a function by torch.compile
    python benchmarks/pytorch_loop.py --seconds 4 --arm untied
    python benchmarks/pytorch_loop.py --seeds 32
    python benchmarks/pytorch_loop.py --seeds 32 --compile
    python benchmarks/pytorch_loop.py --model experiments/lstm_small.py
"""

import argparse
import copy
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.lr_scheduler import CosineAnnealingLR

from jaxtie import Experiment
from jaxtie.config import LSTM
from jaxtie.run.experiment_files import load_experiment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))
from torch_reference import Reference

WARM_UP = 20  # steps, or 3 of what is compiled

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # tokens, masked places, targets
Step = Callable[[Batch], torch.Tensor]  # trains, and returns the loss before that


def training_strings(experiment: Experiment) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bits and parity labels of the training strings, shuffled and cut as published."""
    own = experiment.process
    numbers = list(range(2**own.length - (not own.all_strings)))
    random.Random(own.data_seed).shuffle(numbers)
    train = torch.tensor(numbers[: len(numbers) * 9 // 10])
    bits = (train[:, None] >> torch.arange(own.length).flip(0)) & 1
    return bits, 4 + bits.sum(1, keepdim=True) % 2


def batches(experiment: Experiment, seeds: int) -> Iterator[Batch]:
    """Draw samples of so many seeds; the first axis is the seeds'."""
    bits, label = (x.expand(seeds, *x.shape) for x in training_strings(experiment))
    own = experiment.process
    second = torch.tensor([own.zeros[1], own.ones[1]])[bits]  # of Y for a zero, B for a one
    while True:
        tokens = torch.cat([2 * bits + torch.bernoulli(second).long(), label], 2)
        at = torch.randint(bits.shape[2], (*bits.shape[:2], 1))
        target = tokens.gather(2, at)
        yield tokens.scatter(2, at, 6), at, target


def optimizer_of(
    experiment: Experiment, parameters: list[torch.Tensor]
) -> tuple[torch.optim.AdamW, CosineAnnealingLR]:
    """Return AdamW and its schedule, each of which steps once a batch."""
    own = experiment.optimizer
    options = {"betas": (own.b1, own.b2), "eps": own.eps, "weight_decay": own.weight_decay}
    adamw = torch.optim.AdamW(parameters, own.learning_rate, **options, fused=True)
    return adamw, CosineAnnealingLR(adamw, own.half_period, own.eta_min)


def loop_of(experiment: Experiment, model: Reference) -> Step:
    """Return the step of one seed's plain loop."""
    parameters = list(model.parameters())
    adamw, schedule = optimizer_of(experiment, parameters)

    def step(batch: Batch) -> torch.Tensor:
        loss = model.loss(*(x[0] for x in batch))
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        adamw.step()
        schedule.step()
        return loss.detach()[None]

    return step


class SeedsAtOnce:
    """The step of many seeds: gradients by `torch.func.vmap`, one AdamW for all.

    Attributes:
      parameters: by PyTorch's names, the first axis is the seeds'.
      adamw, schedule: of all seeds.
    """

    def __init__(self, experiment: Experiment, models: list[Reference], compiled: bool = False):
        stacked, _ = stack_module_state(models)
        self.parameters = {name: value.detach().clone() for name, value in stacked.items()}
        self.adamw, self.schedule = optimizer_of(experiment, list(self.parameters.values()))
        skeleton = copy.deepcopy(models[0])

        def loss_of(own: Mapping[str, torch.Tensor], *batch: torch.Tensor) -> torch.Tensor:
            tokens, at, target = batch
            logits = functional_call(skeleton, own, (tokens, at))
            return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

        differentiated = vmap(grad_and_value(loss_of))
        self._differentiated = torch.compile(differentiated) if compiled else differentiated

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Train a step; return each seed's loss before it."""
        # attention's other kernels have no rule for `vmap`: a loop over the seeds
        with sdpa_kernel(SDPBackend.MATH):
            gradients, losses = self._differentiated(self.parameters, *batch)
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name]
        self.adamw.step()
        self.schedule.step()
        return losses


def make_models(experiment: Experiment, arm: str, seeds: int, seed: int = 0) -> list[Reference]:
    """Return fresh models; of several, an LSTM is one that `vmap` can map."""
    torch.manual_seed(seed)
    models = [Reference(experiment.model, tied=arm == "tied") for _ in range(seeds)]
    if seeds > 1 and isinstance(experiment.model, LSTM):
        for model in models:
            model.body.lstm = MappableLSTM(model.body.lstm)
    return models


class MappableLSTM(nn.Module):
    """`torch.nn.LSTM`, bidirectional and batch-first, without its kernel, which `vmap` cannot map.

    Inputs meet their weights at all positions in one product, as in the kernel.
    """

    def __init__(self, lstm: nn.LSTM):
        super().__init__()
        self.layers, self.own = lstm.num_layers, nn.ParameterDict(dict(lstm.named_parameters()))

    def forward(self, x_BxLxI: torch.Tensor) -> tuple[torch.Tensor, None]:
        for layer in range(self.layers):
            forward = self._direction(x_BxLxI, f"_l{layer}", False)
            backward = self._direction(x_BxLxI, f"_l{layer}_reverse", True)
            x_BxLxI = torch.cat([forward, backward], -1)
        return x_BxLxI, None

    def _direction(self, x_BxLxI: torch.Tensor, place: str, reverse: bool) -> torch.Tensor:
        weight, recurrent = self.own[f"weight_ih{place}"], self.own[f"weight_hh{place}"]
        bias = self.own[f"bias_ih{place}"] + self.own[f"bias_hh{place}"]
        gates = nn.functional.linear(x_BxLxI, weight, bias)
        h = c = torch.zeros_like(gates[:, 0, : recurrent.shape[1]])
        outputs = []
        for at in reversed(range(gates.shape[1])) if reverse else range(gates.shape[1]):
            i, f, g, o = (gates[:, at] + h @ recurrent.T).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs[::-1] if reverse else outputs, 1)


def rate(step: Step, drawn: Iterator[Batch], seeds: int, seconds: float, warm_up: int) -> float:
    """Return seed-steps per second."""
    for _ in range(warm_up):
        loss = step(next(drawn))
    loss.sum().item()  # a GPU has done all steps then
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds or not steps:
        loss = step(next(drawn))
        steps += 1
    loss.sum().item()
    return seeds * steps / (time.perf_counter() - began)


def main() -> None:
    """Print seed-steps per second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seconds", type=float, default=4.0, help="of timed steps, about")
    add("--arm", choices=("tied", "untied"), default="untied")
    add("--seed", type=int, default=0, help="of PyTorch's random numbers")
    add("--seeds", type=int, default=1, help="at once; more than one by torch.func.vmap")
    add("--compile", action="store_true", help="several seeds' gradients by torch.compile")
    add("--model", type=Path, help="a file of experiments/ (default: the main experiment)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    experiment = load_experiment(options.model) if options.model else Experiment()
    models = make_models(experiment, options.arm, options.seeds, options.seed)
    if options.seeds > 1:
        step: Step = SeedsAtOnce(experiment, models, options.compile)
    else:
        step = loop_of(experiment, models[0])
    warm_up = 3 if options.compile or options.model else WARM_UP
    print(rate(step, batches(experiment, options.seeds), options.seeds, options.seconds, warm_up))


if __name__ == "__main__":
    main()
