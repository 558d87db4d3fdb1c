"""Real tokens per second and peak memory of text models at published size, against PyTorch.

    # sentence lengths from a lognormal; sentences of a text; one side, in this process
    python benchmarks/text.py
    python benchmarks/text.py --text books/ --vocabulary 30522
    python benchmarks/text.py --only jaxtie-masked

Each side trains in a process of its own with every core; they take turns, a few seconds each. Rows
are sentences, batches have 128. jaxtie's batches have rows of one length bucket (16, 32, 64, 128),
in the share that the lengths give, and so as many steps per sentence; PyTorch's are padded to their
longest row. As published, PyTorch computes all logits of the masked model; `-few` is given logits
and loss where it was masked only, as jaxtie has them. Padding counts for nobody. Tables have a row
for each of so many entries, whether the text knows that many or not, and for each duplicate of a
frequent word.
"""

import argparse
import itertools
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from turns import Spread, has_torch, take_turns

if TYPE_CHECKING:
    import torch

    from jaxtie.models.language_model import TextModel
    from jaxtie.text.task import Ask

DUPLICATES, ROWS, BUCKETS = 100, 128, (16, 32, 64, 128)
SENTENCES = 64 * ROWS
PAD, UNK, CLS, SEP, MASK = range(5)
WIDTH, LAYERS, HEADS, FEEDFORWARD = 128, 3, 4, 512
SIDES = ("jaxtie-masked", "pytorch-masked", "pytorch-masked-few", "jaxtie-causal", "pytorch-causal")


class Vocabulary(NamedTuple):
    """Entries of the tables, and which of them are the frequent words that have a duplicate behind
    all of them.
    """

    entries: int = 8192
    words: tuple[int, ...] = tuple(range(10, 10 + DUPLICATES))

    @property
    def rows(self) -> int:
        """Rows of a table."""
        return self.entries + len(self.words)

    @property
    def twins(self) -> np.ndarray:
        """Of each word its duplicate."""
        return np.arange(self.entries, self.rows)


SMALLER = Vocabulary()


def drawn_sentences(own: Vocabulary, rng: np.random.Generator) -> list[np.ndarray]:
    """Of any tokens, words with a duplicate among them as often as in English.

    Lengths are lognormal, with a median of 17 tokens and a deviation of 0.75 of its logarithm: mean
    22.5, one in 13 above 50.
    """
    found = []
    for length in np.clip(
        np.round(rng.lognormal(np.log(17), 0.75, SENTENCES)), 2, BUCKETS[-1] - 2
    ).astype(int):
        tokens = rng.integers(max(own.words) + 1, own.entries, length)
        found.append(np.where(rng.random(length) < 0.4, rng.choice(own.words, length), tokens))
    return found


def sentences_of(
    texts: list[str], entries: int, rng: np.random.Generator
) -> tuple[Vocabulary, list[np.ndarray]]:
    """Sentences of some texts, by a vocabulary that was trained on them; of those that are too long
    the beginning.
    """
    from jaxtie.text.config import Corpus
    from jaxtie.text.data.tokens import frequent_words, prepare_text

    text = prepare_text(Corpus(tuple(texts), vocab_size=entries))
    assert text.special == (PAD, UNK, CLS, SEP, MASK)
    chosen = rng.integers(text.train.count, size=SENTENCES)
    words, _ = frequent_words(text, DUPLICATES)
    return Vocabulary(entries, tuple(map(int, words))), [
        text.train.row(r)[: BUCKETS[-1] - 2] for r in chosen
    ]


def batches(
    sentences: list[np.ndarray], bucketed: bool, rng: np.random.Generator
) -> list[np.ndarray]:
    """Rows in batches of 128, those of a bucket together or each batch as long as its longest
    row.
    """
    rows = [np.array([CLS, *sentence, SEP], np.int32) for sentence in sentences]
    of_row = np.searchsorted(BUCKETS, [len(row) for row in rows])
    groups = (
        [[row for row, of in zip(rows, of_row) if of == bucket] for bucket in range(len(BUCKETS))]
        if bucketed
        else [rows]
    )
    made = []
    for group in groups:
        for cut in (group[i : i + ROWS] for i in range(0, len(group) - ROWS + 1, ROWS)):
            longest = max(map(len, cut))
            width = next(bucket for bucket in BUCKETS if bucket >= longest) if bucketed else longest
            made.append(
                np.stack([np.pad(row, (0, width - len(row)), constant_values=PAD) for row in cut])
            )
    rng.shuffle(made)
    return made


def make_jaxtie(causal: bool, own: Vocabulary) -> tuple["TextModel", "Ask"]:
    """jaxtie's model, untied, and what it predicts of a batch."""
    import jax

    from jaxtie.config import Head
    from jaxtie.models.language_model import causal_model, masked_model
    from jaxtie.text import masking
    from jaxtie.tying.linen import make_embedding

    options = {"deviation": 0.02 if causal else 0.3, "padding": PAD}
    words = np.array(own.words)
    ends = make_embedding(Head(), own.rows, WIDTH, tied=False, **options)
    make = causal_model if causal else masked_model

    def ask(key, tokens):
        swap_key, mask_key = jax.random.split(key)
        tokens = masking.swap(swap_key, tokens, words, own.twins)
        if causal:
            return masking.next_tokens(tokens, padding=PAD)
        room = masking.capacity(tokens.size)
        return masking.mask(
            mask_key,
            tokens,
            mask=MASK,
            never=(PAD, CLS, SEP),
            base_vocabulary=own.entries,
            room=room,
        )

    return make(ends, layers=LAYERS, heads=HEADS, feedforward=FEEDFORWARD), ask


def time_jaxtie(
    causal: bool, own: Vocabulary, made: list[np.ndarray], seconds: float
) -> tuple[float, float]:
    """Real tokens and seconds of training on batches in turn, compiled beforehand."""
    from jaxtie.config import Optimizer
    from jaxtie.text.task import make_step
    from jaxtie.training.devices import start_jax
    from jaxtie.training.member import initial_state
    from jaxtie.training.optimizer import adamw_of

    jax = start_jax()
    model, ask = make_jaxtie(causal, own)
    adamw = adamw_of(
        Optimizer(learning_rate=1e-4, eta_min=1e-5, half_period=10_000, weight_decay=0.01)
    )
    # compiled: so clones get their own copies
    start = jax.jit(partial(initial_state, model, adamw, length=16))
    state = start(jax.random.key(0))
    step = jax.jit(make_step(model, adamw, ask), donate_argnums=0)
    keys = iter(jax.random.split(jax.random.key(1), 100_000))
    for width in {batch.shape[1] for batch in made}:
        state, _ = step(state, next(batch for batch in made if batch.shape[1] == width), next(keys))

    def one(batch: np.ndarray) -> None:
        nonlocal state
        state, looked_at = jax.block_until_ready(step(state, batch, next(keys)))
        assert np.isfinite(looked_at.loss)

    return clock(one, made, seconds)


def make_pytorch(
    causal: bool, rows: int
) -> tuple["torch.nn.Embedding", "torch.nn.Parameter", "torch.nn.TransformerEncoder"]:
    """The same model in PyTorch's own modules, untied; the causal one without rotary positions: a
    little less work.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    embedding = nn.Embedding(rows, WIDTH, padding_idx=PAD)
    output = nn.Parameter(0.3 * torch.randn(rows, WIDTH))
    layer = nn.TransformerEncoderLayer(
        WIDTH,
        HEADS,
        FEEDFORWARD,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=causal,
    )
    norm = nn.LayerNorm(WIDTH) if causal else None
    return (
        embedding,
        output,
        nn.TransformerEncoder(layer, LAYERS, norm=norm, enable_nested_tensor=False),
    )


def time_pytorch(
    causal: bool, few: bool, own: Vocabulary, made: list[np.ndarray], seconds: float
) -> tuple[float, float]:
    """The same training in PyTorch, with its fused AdamW."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, linear

    from jaxtie.training.devices import keep_memory

    keep_memory()  # as jaxtie's side has it
    embedding, output, encoder = make_pytorch(causal, own.rows)
    parameters = [*embedding.parameters(), *encoder.parameters(), output]
    optimizer = torch.optim.AdamW(parameters, 1e-4, eps=1e-12, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000, 1e-5)
    twin = torch.arange(own.rows)
    twin[torch.tensor(own.words)] = torch.tensor(own.twins)

    def causal_loss(tokens: torch.Tensor) -> torch.Tensor:
        of_next = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        h = encoder(embedding(tokens), mask=of_next, is_causal=True)[:, :-1]
        return cross_entropy(
            linear(h, output).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD
        )

    def masked_loss(tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == PAD
        chosen = (torch.rand(tokens.shape) < 0.15) & ~padding & (tokens != CLS) & (tokens != SEP)
        fate = torch.rand(tokens.shape)
        seen = torch.where(chosen & (fate < 0.8), MASK, tokens)
        seen = torch.where(chosen & (fate > 0.9), torch.randint(own.entries, tokens.shape), seen)
        h = encoder(embedding(seen), src_key_padding_mask=padding)
        if few:
            return cross_entropy(linear(h[chosen], output), tokens[chosen])
        target = torch.where(chosen, tokens, -100)
        return cross_entropy(linear(h, output).flatten(0, 1), target.flatten())

    def one(batch: np.ndarray) -> None:
        tokens = torch.from_numpy(batch).long()
        tokens = torch.where(torch.rand(tokens.shape) < 0.5, twin[tokens], tokens)
        loss = causal_loss(tokens) if causal else masked_loss(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    one(made[0])
    return clock(one, made, seconds)


def clock(
    one: Callable[[np.ndarray], None], made: list[np.ndarray], seconds: float
) -> tuple[float, float]:
    """Real tokens and time of steps on batches in turn."""
    began, tokens, i = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        one(made[i % len(made)])
        tokens, i = tokens + int((made[i % len(made)] != PAD).sum()), i + 1
    return tokens, time.perf_counter() - began


def time_side(
    side: str, texts: list[str], entries: int, seconds: float, seed: int
) -> dict[str, float]:
    """One side in this process: real tokens per second, MiB, the share of a batch's places that are
    real tokens.
    """
    rng = np.random.default_rng(seed)
    ours, causal, own = side.startswith("jaxtie"), "causal" in side, Vocabulary(entries)
    own, sentences = (
        sentences_of(texts, entries, rng) if texts else (own, drawn_sentences(own, rng))
    )
    made = batches(sentences, ours, rng)
    if ours:
        timed = time_jaxtie(causal, own, made, seconds)
    else:
        timed = time_pytorch(causal, side.endswith("few"), own, made, seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    real = [(batch != PAD).mean() for batch in made]
    return {"rate": timed[0] / timed[1], "mib": peak, "filled": float(np.mean(real))}


def time_in_process(
    side: str, options: argparse.Namespace, seeds: Iterator[int]
) -> dict[str, float]:
    """The same in a process of its own, each time with the next seed."""
    command = [
        sys.executable,
        __file__,
        "--only",
        side,
        "--seconds",
        str(options.seconds),
        "--seed",
        str(next(seeds)),
    ]
    command += [
        "--vocabulary",
        str(options.vocabulary),
        *["--text", *options.text] * bool(options.text),
    ]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def show(found: dict[str, list[dict[str, float]]]) -> None:
    """A line for each side."""
    for side, runs in found.items():
        rates, mib, filled = ([each[name] for each in runs] for name in ("rate", "mib", "filled"))
        line = f"{side:20s} {Spread.of(rates):,.0f} tokens/s"
        line += (
            f"  {statistics.median(mib):7,.0f} MiB, {statistics.median(filled):.0%} of a batch real"
        )
        base = "jaxtie-" + side.split("-")[1]
        if side != base and base in found:
            line += (
                f"; jaxtie x {Spread.of_ratios([each['rate'] for each in found[base]], rates):.2f}"
            )
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--text", nargs="+", default=[], help="files or folders that sentences are taken from"
    )
    parser.add_argument(
        "--vocabulary", type=int, default=SMALLER.entries, help="entries (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="of each side (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of each repeat (default: %(default)s)"
    )
    parser.add_argument("--sides", default=",".join(SIDES), help="default: %(default)s")
    parser.add_argument("--only", choices=SIDES, help="one side, in this process")
    parser.add_argument(
        "--seed", type=int, default=0, help="of sentences; each repeat has the next one"
    )
    options = parser.parse_args()
    if options.only:
        print(
            json.dumps(
                time_side(
                    options.only, options.text, options.vocabulary, options.seconds, options.seed
                )
            )
        )
        return
    chosen = [side for side in options.sides.split(",") if side.startswith("jaxtie") or has_torch()]
    sides = {
        side: partial(time_in_process, side, options, itertools.count(options.seed))
        for side in chosen
    }
    found = take_turns(sides, options.repeats)
    packages = f"torch {version('torch')}" if has_torch() else "no torch"
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, jax {version('jax')}, {packages};"
        " medians [range]"
    )
    show(found)


if __name__ == "__main__":
    main()
