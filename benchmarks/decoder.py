"""Tokens per second and peak memory of a decoder of today, untied, against PyTorch.

    python benchmarks/decoder.py                                    # width 128, as tying_at_scale
    python benchmarks/decoder.py --width 768 --layers 6 --vocabulary 32000 --context 1024 --peak 989

Rows of random tokens, without padding; both sides predict every token from those before it, with
the same numbers of parameters and AdamW on all of them. PyTorch has `scaled_dot_product_attention`
and the fused AdamW, as it is and compiled; on a GPU both multiply matrices of bfloat16, and jaxtie
has what `jaxtie run` has there: options that give the same bits again, and logits in large blocks.
`--plain` leaves these out. Each side trains in a process of its own with every core; they take
turns, a few seconds each.
"""

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version

import numpy as np
from text import clock, make_member, peak_memory
from turns import Spread, has_torch, take_turns

SIDES = ("jaxtie", "pytorch", "pytorch-compiled")
PAD = -1
BATCHES = 20  # different ones


def make_batches(own: argparse.Namespace) -> list[np.ndarray]:
    rng, shape = np.random.default_rng(0), (own.batch, own.context)
    return [rng.integers(own.vocabulary, size=shape).astype(np.int32) for _ in range(BATCHES)]


def time_jaxtie(own: argparse.Namespace) -> tuple[float, float, int]:
    """Return tokens, seconds and parameters of training, compiled beforehand."""
    from jaxtie.config import Decoder, Head, Optimizer
    from jaxtie.models.language_model import TextModel, build_body
    from jaxtie.text import masking
    from jaxtie.training.devices import REPEATABLE, start_jax
    from jaxtie.training.optimizer import make_optimizer
    from jaxtie.tying.cross_entropy import block_size
    from jaxtie.tying.linen import make_embedding
    from jaxtie.tying.tie import count_parameters

    jax = start_jax()
    platform = jax.default_backend()
    dtype = None if platform == "cpu" else jax.numpy.bfloat16
    suited = "cpu" if own.plain else platform
    options = {} if own.plain else dict(REPEATABLE.get(platform, {}))
    embedding = make_embedding(
        Head(), own.vocabulary, own.width, tied=False, init_std=0.02, matmul_dtype=dtype
    )
    sizes = Decoder(layers=own.layers, heads=own.heads, width=own.width)
    optimizer = make_optimizer(Optimizer(learning_rate=1e-4, weight_decay=0.1, b2=0.99, eps=1e-8))
    model = TextModel(embedding, build_body(sizes, dtype=dtype))

    def ask(_, tokens):
        return masking.next_tokens(tokens, padding=PAD)

    start, step = make_member(model, optimizer, ask, block_size(suited, own.vocabulary))
    loss = np.zeros(())
    state = jax.jit(start)(jax.random.key(0))

    call = jax.jit(lambda *own: step(*own, None), donate_argnums=0, compiler_options=options)

    def one(batch: np.ndarray) -> None:
        nonlocal state, loss
        state, loss = call(state, batch)

    def finish() -> None:
        assert np.isfinite(loss)

    made = make_batches(own)
    one(made[0])
    check_loss(float(loss), own.vocabulary)
    return *clock(one, finish, made, own.seconds), count_parameters(state.params)


def time_pytorch(own: argparse.Namespace, *, compiled: bool) -> tuple[float, float, int]:
    """Return the same of PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    width, heads, hidden = own.width, own.heads, 3 * own.width
    place = torch.arange(own.context)[:, None]
    angle = place * 1e4 ** (-torch.arange(0, width // heads, 2) / (width // heads))
    cos, sin = angle.cos(), angle.sin()

    def rotate(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
            sizes = (3 * width, width), (width, width), (2 * hidden, width), (width, hidden)
            self.qkv, self.out, self.up, self.down = (
                nn.Parameter(0.02 * torch.randn(size)) for size in sizes
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            q, k, v = (
                functional.linear(self.norm1(x), self.qkv)
                .view(batch, length, 3, heads, width // heads)
                .permute(2, 0, 3, 1, 4)
            )
            attended = functional.scaled_dot_product_attention(
                rotate(q).to(v.dtype), rotate(k).to(v.dtype), v, is_causal=True
            )
            attended = attended.transpose(1, 2).reshape(x.shape)
            x = x + functional.linear(attended, self.out)
            gate, inner = functional.linear(self.norm2(x), self.up).chunk(2, dim=-1)
            return x + functional.linear(functional.silu(gate) * inner, self.down)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.input = nn.Parameter(0.02 * torch.randn(own.vocabulary, width))
            self.output = nn.Parameter(0.02 * torch.randn(own.vocabulary, width))
            self.layers = nn.ModuleList(Layer() for _ in range(own.layers))
            self.norm = nn.RMSNorm(width, eps=1e-5)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = functional.embedding(tokens, self.input)
            for layer in self.layers:
                x = layer(x)
            logits = functional.linear(self.norm(x)[:, :-1], self.output)
            return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    model = Model()
    optimizer = torch.optim.AdamW(
        model.parameters(), 1e-4, betas=(0.9, 0.99), weight_decay=0.1, fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000, 1e-5)
    loss_of = torch.compile(model) if compiled else model
    loss = torch.zeros(())

    def one(batch: np.ndarray) -> None:
        nonlocal loss
        tokens = torch.from_numpy(batch).to(device).long()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    def finish() -> None:
        assert np.isfinite(loss.item())

    made = make_batches(own)
    one(made[0])
    check_loss(loss.item(), own.vocabulary)
    for batch in made[:2]:
        one(batch)
    parameters = sum(each.numel() for each in model.parameters())
    return *clock(one, finish, made, own.seconds), parameters


def check_loss(loss: float, vocabulary: int) -> None:
    """Check that a fresh model guesses."""
    assert abs(loss - math.log(vocabulary)) < 0.1, f"{loss} of a fresh model"


def time_side(own: argparse.Namespace) -> dict[str, float]:
    """Return tokens per second, MiB and parameters of one side."""
    ours = own.only == "jaxtie"
    compiled = own.only == "pytorch-compiled"
    tokens, seconds, parameters = time_jaxtie(own) if ours else time_pytorch(own, compiled=compiled)
    return {"rate": tokens / seconds, "mib": peak_memory(ours), "parameters": parameters}


def time_in_process(side: str, arguments: list[str]) -> dict[str, float]:
    """Return the same from a process of its own."""
    command = [sys.executable, __file__, *arguments, "--only", side]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def flops_of_token(own: argparse.Namespace) -> int:
    """Return operations of training on a token; of attention those that a causal mask leaves."""
    import jaxtie

    sizes = own.vocabulary, own.width, own.layers
    options = {"tied": False, "feedforward": 3 * own.width, "gated": True, "heads": own.heads}
    return jaxtie.budget(*sizes, **options, context=own.context // 2).training_flops


def main() -> None:
    """Measure all sides in turns, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    for name, value in {"width": 128, "layers": 4, "vocabulary": 4_096, "context": 128}.items():
        add(f"--{name}", type=int, default=value, help="(%(default)s)")
    add("--batch", type=int, default=8, help="rows (%(default)s)")
    add("--repeats", type=int, default=5, help="of each side (%(default)s)")
    add("--seconds", type=float, default=8.0, help="of each repeat (%(default)s)")
    add("--sides", default=",".join(SIDES), help="(%(default)s)")
    add("--peak", type=float, help="rate of the device, 10^12 operations a second")
    add("--plain", action="store_true", help="jaxtie as on a CPU, but for bfloat16")
    add("--only", choices=SIDES, help="one side, in this process")
    own = parser.parse_args()
    own.heads = max(1, own.width // (32 if own.width < 512 else 64))
    if own.only:
        print(json.dumps(time_side(own)))
        return
    chosen = [side for side in own.sides.split(",") if side == "jaxtie" or has_torch()]
    sides = {side: partial(time_in_process, side, sys.argv[1:]) for side in chosen}
    found = take_turns(sides, own.repeats)
    packages = [f"{name} {version(name)}" for name in ("jax", *["torch"] * has_torch())]
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {', '.join(packages)}")
    for side, runs in found.items():
        rates, mib = ([each[name] for each in runs] for name in ("rate", "mib"))
        line = f"{side:20s} {Spread.of(rates):,.0f} tokens/s  {statistics.median(mib):7,.0f} MiB"
        line += f"  {runs[0]['parameters']:,} parameters"
        if own.peak:
            share = statistics.median(rates) * flops_of_token(own) / (own.peak * 1e12)
            line += f"  {share:.3f} of the peak"
        if side != "jaxtie" and "jaxtie" in found:
            ratio = Spread.of_ratios([each["rate"] for each in found["jaxtie"]], rates)
            line += f"; jaxtie x {ratio:.2f}"
        print(line)


if __name__ == "__main__":
    main()
