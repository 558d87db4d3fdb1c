"""Real tokens per second and peak memory of the models of text at published size, against PyTorch where it is installed.

    python benchmarks/text.py                              # sentences' lengths drawn from a lognormal
    python benchmarks/text.py --text FILE...               # ... or those of the sentences of some texts
    python benchmarks/text.py --only jaxtie-masked         # one side, in this process

Each side trains in a process of its own with every core; they take turns, a few seconds each. Rows are sentences, batches
have 128. jaxtie's batches have rows of one length bucket (16, 32, 64, 128), in the share that the lengths give, and so as
many steps per sentence; PyTorch's are padded to their longest row. As published, PyTorch computes all logits of the masked
model; `-few` is given logits and loss where it was masked only, as jaxtie has them. Padding counts for nobody.
"""

import argparse
import json
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

BASE, DUPLICATES, ROWS, BUCKETS = 8192, 100, 128, (16, 32, 64, 128)
PAD, CLS, SEP, MASK = 0, 2, 3, 4
WIDTH, LAYERS, HEADS, FEEDFORWARD = 128, 3, 4, 512
SIDES = ("jaxtie-masked", "pytorch-masked", "pytorch-masked-few", "jaxtie-causal", "pytorch-causal")
WORDS = np.arange(10, 10 + DUPLICATES)


def lengths(texts: list[str], rng: np.random.Generator, rows: int) -> np.ndarray:
    """Tokens of so many rows, [CLS] and [SEP] included: of sentences of texts (1.2 tokens a word or mark), or lognormal.

    The lognormal has a median of 17 tokens and a deviation of 0.75 of its logarithm: mean 22.5, one in 13 above 50.
    """
    if texts:
        whole = " ".join(Path(text).read_text(encoding="latin-1") for text in texts)
        sentences = re.split(r"(?<=[.!?])\s+", whole)
        tokens = np.array([1.2 * len(re.findall(r"\w+|[^\w\s]", sentence)) for sentence in sentences])
        tokens = rng.choice(tokens, rows)
    else:
        tokens = rng.lognormal(np.log(17), 0.75, rows)
    return np.clip(np.round(tokens) + 2, 4, BUCKETS[-1]).astype(int)


def fill(length_B: np.ndarray, width: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of random tokens, words with a duplicate among them as often as in English; BxL."""
    tokens = rng.integers(10 + DUPLICATES, BASE, (len(length_B), width))
    tokens = np.where(rng.random(tokens.shape) < 0.4, rng.choice(WORDS, tokens.shape), tokens)
    tokens[np.arange(width)[None] >= length_B[:, None]] = PAD
    tokens[:, 0], tokens[np.arange(len(length_B)), length_B - 1] = CLS, SEP
    return tokens.astype(np.int32)


def batches(length_N: np.ndarray, bucketed: bool, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows in batches of 128, those of a bucket together or each batch as long as its longest row."""
    of_row = np.array(BUCKETS)[np.searchsorted(BUCKETS, length_N)]
    groups = [length_N[of_row == bucket] for bucket in BUCKETS] if bucketed else [length_N]
    cut = [group[i : i + ROWS] for group in groups for i in range(0, len(group) - ROWS + 1, ROWS)]
    width = lambda group: BUCKETS[np.searchsorted(BUCKETS, group.max())] if bucketed else group.max()
    made = [fill(group, width(group), rng) for group in cut]
    rng.shuffle(made)
    return made


def time_jaxtie(causal: bool, made: list[np.ndarray], seconds: float) -> tuple[float, float]:
    """Real tokens and seconds of training on batches in turn, compiled beforehand."""
    from jaxtie.run import start_jax

    jax = start_jax()
    from jaxtie import optim, train, train_text
    from jaxtie.data import masking
    from jaxtie.models.embedding import Embedding
    from jaxtie.models.text import causal_model, masked_model

    vocabulary = BASE + DUPLICATES
    model = causal_model(Embedding(vocabulary, WIDTH, deviation=0.02, padding=PAD)) if causal else masked_model(vocabulary)

    def ask(key, tokens):
        swap_key, mask_key = jax.random.split(key)
        tokens = masking.swap(swap_key, tokens, WORDS, WORDS + BASE - WORDS[0])
        if causal:
            return masking.next_tokens(tokens, padding=PAD)
        room = masking.capacity(tokens.size)
        return masking.mask(mask_key, tokens, mask=MASK, never=(PAD, CLS, SEP), base_vocabulary=BASE, room=room)

    schedule = optim.periodic_cosine(1e-4, 1e-5, 10_000)
    adamw = optim.adamw(schedule, weight_decay=0.01, b1=0.9, b2=0.999, eps=1e-12)
    state = jax.jit(lambda key: train.initial_state(model, adamw, key, 16))(jax.random.key(0))  # clones get their own copies
    step = jax.jit(train_text.make_step(model, adamw, ask), donate_argnums=0)
    keys = iter(jax.random.split(jax.random.key(1), 100_000))
    for width in {batch.shape[1] for batch in made}:
        state, _ = step(state, next(batch for batch in made if batch.shape[1] == width), next(keys))

    def one(batch: np.ndarray) -> None:
        nonlocal state
        state, looked_at = jax.block_until_ready(step(state, batch, next(keys)))
        assert np.isfinite(looked_at.loss)

    return clock(one, made, seconds)


def time_pytorch(causal: bool, few: bool, made: list[np.ndarray], seconds: float) -> tuple[float, float]:
    """The same model in PyTorch's own modules, its fused AdamW; untied, as jaxtie's."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, linear

    from jaxtie.run import keep_memory

    keep_memory()  # as jaxtie's side has it
    torch.manual_seed(0)
    vocabulary = BASE + DUPLICATES
    embedding = nn.Embedding(vocabulary, WIDTH, padding_idx=PAD)
    output = nn.Parameter(0.3 * torch.randn(vocabulary, WIDTH))
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, FEEDFORWARD, dropout=0.0, activation="gelu", batch_first=True, norm_first=causal
    )
    encoder = nn.TransformerEncoder(
        layer, LAYERS, norm=nn.LayerNorm(WIDTH) if causal else None, enable_nested_tensor=False
    )  # the causal one without jaxtie's rotary positions: a little less work
    parameters = [*embedding.parameters(), *encoder.parameters(), output]
    optimiser = torch.optim.AdamW(parameters, 1e-4, eps=1e-12, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10_000, 1e-5)
    twin = torch.arange(vocabulary)
    twin[torch.tensor(WORDS)] = torch.tensor(WORDS + BASE - WORDS[0])

    def one(batch: np.ndarray) -> None:
        tokens = torch.from_numpy(batch).long()
        tokens = torch.where(torch.rand(tokens.shape) < 0.5, twin[tokens], tokens)
        padding = tokens == PAD
        if causal:
            of_next = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            h = encoder(embedding(tokens), mask=of_next, is_causal=True)[:, :-1]
            loss = cross_entropy(linear(h, output).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
        else:
            chosen = (torch.rand(tokens.shape) < 0.15) & ~padding & (tokens != CLS) & (tokens != SEP)
            fate = torch.rand(tokens.shape)
            seen = torch.where(chosen & (fate < 0.8), MASK, tokens)
            seen = torch.where(chosen & (fate > 0.9), torch.randint(BASE, tokens.shape), seen)
            h = encoder(embedding(seen), src_key_padding_mask=padding)
            if few:
                loss = cross_entropy(linear(h[chosen], output), tokens[chosen])
            else:
                target = torch.where(chosen, tokens, -100)
                loss = cross_entropy(linear(h, output).flatten(0, 1), target.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()

    one(made[0])
    return clock(one, made, seconds)


def clock(one, made: list[np.ndarray], seconds: float) -> tuple[float, float]:
    """Real tokens and time of steps on batches in turn."""
    began, tokens, i = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        one(made[i % len(made)])
        tokens, i = tokens + int((made[i % len(made)] != PAD).sum()), i + 1
    return tokens, time.perf_counter() - began


def run(side: str, texts: list[str], seconds: float, seed: int) -> None:
    """One side in this process; prints JSON: real tokens per second, MiB."""
    rng = np.random.default_rng(seed)
    ours, causal = side.startswith("jaxtie"), "causal" in side
    made = batches(lengths(texts, rng, 64 * ROWS), ours, rng)
    timed = time_jaxtie(causal, made, seconds) if ours else time_pytorch(causal, side.endswith("few"), made, seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    real = [(batch != PAD).mean() for batch in made]
    print(json.dumps({"rate": timed[0] / timed[1], "mib": peak, "filled": float(np.mean(real))}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", nargs="+", default=[], help="files that lengths of sentences are taken from")
    parser.add_argument("--repeats", type=int, default=5, help="of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each repeat (default: %(default)s)")
    parser.add_argument("--sides", default=",".join(SIDES), help="default: %(default)s")
    parser.add_argument("--only", choices=SIDES, help="one side, in this process")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.only:
        return run(options.only, options.text, options.seconds, options.seed)
    try:
        packages = f"torch {version('torch')}"
    except PackageNotFoundError:
        packages = "no torch"
    sides = [side for side in options.sides.split(",") if side.startswith("jaxtie") or packages != "no torch"]
    found: dict[str, list[dict]] = {side: [] for side in sides}
    for repeat in range(options.repeats):
        for side in sides:
            command = [sys.executable, __file__, "--only", side, "--seconds", str(options.seconds), "--seed", str(repeat)]
            command += ["--text", *options.text] * bool(options.text)
            found[side].append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
            rate = found[side][-1]["rate"]
            print(f"repeat {repeat + 1} of {options.repeats}: {side:20s} {rate:9,.0f} tokens/s", file=sys.stderr, flush=True)
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, jax {version('jax')}, {packages}; medians [range]")
    for side, runs in found.items():
        rates, mib = ([each[name] for each in runs] for name in ("rate", "mib"))
        filled = statistics.median(each["filled"] for each in runs)
        line = f"{side:20s} {statistics.median(rates):9,.0f} tokens/s [{min(rates):,.0f}, {max(rates):,.0f}]"
        line += f"  {statistics.median(mib):7,.0f} MiB, {filled:.0%} of a batch real"
        base = "jaxtie-" + side.split("-")[1]
        if side != base and base in found:
            ratios = [a["rate"] / b["rate"] for a, b in zip(found[base], runs, strict=True)]
            line += f"; jaxtie x {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(line)


if __name__ == "__main__":
    main()
