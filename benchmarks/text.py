"""Real tokens per second and peak memory of text models at published size, against PyTorch.

    # sentence lengths from a lognormal; sentences of a text; one side, in this process
    python benchmarks/text.py
    python benchmarks/text.py --text books/ --vocabulary 30522
    python benchmarks/text.py --only jaxtie-masked

Each side trains in a process of its own with every core; they take turns, a few seconds each. Rows
are sentences, batches have 128. jaxtie's batches have rows of one length bucket (16, 32, 64, 128),
in the share that the lengths give, and so as many steps per sentence; PyTorch's are padded to their
longest row. As published, PyTorch computes all logits of the masked model; `-few` is given logits
and loss where it was masked only, as jaxtie has them. Padding does not count. Tables have a row
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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from turns import Spread, has_torch, take_turns

if TYPE_CHECKING:
    import torch

    from jaxtie.models.language_model import TextModel

DUPLICATES, ROWS, BUCKETS = 100, 128, (16, 32, 64, 128)
SENTENCES = 64 * ROWS
PAD, UNK, CLS, SEP, MASK = range(5)
WIDTH, LAYERS, HEADS, FEEDFORWARD = 128, 3, 4, 512
SIDES = ("jaxtie-masked", "pytorch-masked", "pytorch-masked-few", "jaxtie-causal", "pytorch-causal")


class Vocabulary(NamedTuple):
    """Entries of the tables, and the frequent words; their duplicates follow all entries."""

    entries: int = 8192
    words: tuple[int, ...] = tuple(range(10, 10 + DUPLICATES))

    @property
    def rows(self) -> int:
        """Rows of a table."""
        return self.entries + len(self.words)

    @property
    def duplicates(self) -> np.ndarray:
        """The duplicate of each word."""
        return np.arange(self.entries, self.rows)


def draw_sentences(own: Vocabulary, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw tokens, with words that have a duplicate as frequent as in English.

    Lengths are lognormal, with a median of 17 tokens and a deviation of 0.75 of its logarithm: mean
    22.5, one in 13 above 50.
    """
    found = []
    lengths = np.round(rng.lognormal(np.log(17), 0.75, SENTENCES))
    for length in np.clip(lengths, 2, BUCKETS[-1] - 2).astype(int):
        tokens = rng.integers(max(own.words) + 1, own.entries, length)
        found.append(np.where(rng.random(length) < 0.4, rng.choice(own.words, length), tokens))
    return found


def read_sentences(
    texts: list[str], entries: int, rng: np.random.Generator
) -> tuple[Vocabulary, list[np.ndarray]]:
    """Return sentences of texts, cut at the longest row, in a vocabulary trained on them."""
    from jaxtie.text.data.config import Corpus
    from jaxtie.text.data.tokens import frequent_words, prepare_text

    text = prepare_text(Corpus(tuple(texts), vocab_size=entries))
    assert text.special == (PAD, UNK, CLS, SEP, MASK)
    chosen = rng.integers(text.train.count, size=SENTENCES)
    words, _ = frequent_words(text, DUPLICATES)
    sentences = [text.train.row(r)[: BUCKETS[-1] - 2] for r in chosen]
    return Vocabulary(entries, tuple(map(int, words))), sentences


def make_batches(
    sentences: list[np.ndarray], bucketed: bool, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return batches of 128 rows, by bucket or each as long as its longest row."""
    rows = [np.array([CLS, *sentence, SEP], np.int32) for sentence in sentences]
    groups = [rows]
    if bucketed:
        of_row = np.searchsorted(BUCKETS, [len(row) for row in rows])
        groups = [[rows[i] for i in np.flatnonzero(of_row == b)] for b in range(len(BUCKETS))]
    made = []
    for group in groups:
        for cut in (group[i : i + ROWS] for i in range(0, len(group) - ROWS + 1, ROWS)):
            longest = max(map(len, cut))
            width = next(bucket for bucket in BUCKETS if bucket >= longest) if bucketed else longest
            padded = [np.pad(row, (0, width - len(row)), constant_values=PAD) for row in cut]
            made.append(np.stack(padded))
    rng.shuffle(made)
    return made


def make_model(causal: bool, own: Vocabulary) -> tuple["TextModel", Callable]:
    """Return jaxtie's model, untied, and (key, tokens) -> what it predicts of a batch."""
    import jax

    from jaxtie.config import Head, Transformer
    from jaxtie.models.language_model import TextModel, build_body
    from jaxtie.text import masking
    from jaxtie.tying.linen import make_embedding

    options = {"init_std": 0.02 if causal else 0.3, "padding": PAD}
    embedding = make_embedding(Head(), own.rows, WIDTH, tied=False, **options)
    how = {"mask": MASK, "never": (PAD, CLS, SEP), "base_vocabulary": own.entries}

    def ask(key, tokens):
        swap_key, mask_key = jax.random.split(key)
        tokens = masking.swap(swap_key, tokens, own.words, own.duplicates)
        if causal:
            return masking.next_tokens(tokens, padding=PAD)
        return masking.mask(mask_key, tokens, **how, room=masking.capacity(tokens.size))

    sizes = Transformer(LAYERS, HEADS, WIDTH, FEEDFORWARD)
    return TextModel(embedding, build_body(sizes, causal=causal)), ask


def make_member(
    model: "TextModel", optimizer: Any, ask: Callable, block: int = 128
) -> tuple[Callable, Callable]:
    """Return key -> a fresh state, and (state, tokens, key) -> state, loss."""
    import jax.numpy as jnp

    from jaxtie.text.task import loss_metrics
    from jaxtie.training.member import update
    from jaxtie.training.task import State

    def start(key):
        tokens, at = jnp.zeros(16, jnp.int32), jnp.zeros(1, jnp.int32)
        params = model.init(key, tokens, at)["params"]
        return State(params, optimizer.init(params), jnp.int32(-1))

    def step(state, tokens_BxL, key):
        asked = ask(key, tokens_BxL)

        def loss_of(params):
            metrics = loss_metrics(model, params, asked, block)
            return metrics["loss"], metrics

        state, (loss, _) = update(loss_of, optimizer, state)
        return state, loss

    return start, step


def time_jaxtie(
    causal: bool, own: Vocabulary, made: list[np.ndarray], seconds: float
) -> tuple[float, float]:
    """Return real tokens and seconds of training on batches in turn, compiled beforehand."""
    from jaxtie.config import Optimizer
    from jaxtie.training.devices import start_jax
    from jaxtie.training.optimizer import make_optimizer

    jax = start_jax()
    model, ask = make_model(causal, own)
    optimizer = make_optimizer(Optimizer(learning_rate=1e-4, weight_decay=0.01))
    start, step = make_member(model, optimizer, ask)
    # compiled: so clones get their own copies
    state, step = jax.jit(start)(jax.random.key(0)), jax.jit(step, donate_argnums=0)
    keys = iter(jax.random.split(jax.random.key(1), 100_000))

    def one(batch: np.ndarray) -> None:
        nonlocal state, loss
        state, loss = step(state, batch, next(keys))

    def finish() -> None:
        assert np.isfinite(loss)

    loss: Any = None
    for batch in {batch.shape[1]: batch for batch in made}.values():
        one(batch)
    return clock(one, finish, made, seconds)


def make_pytorch(
    causal: bool, rows: int
) -> tuple["torch.nn.Embedding", "torch.nn.Parameter", "torch.nn.TransformerEncoder"]:
    """Return the same model of PyTorch's modules; without rotary positions: a little less work."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    embedding = nn.Embedding(rows, WIDTH, padding_idx=PAD)
    output = nn.Parameter(0.3 * torch.randn(rows, WIDTH))
    how = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": causal}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FEEDFORWARD, **how)
    norm = nn.LayerNorm(WIDTH) if causal else None
    encoder = nn.TransformerEncoder(layer, LAYERS, norm=norm, enable_nested_tensor=False)
    return embedding, output, encoder


def time_pytorch(
    causal: bool, few: bool, own: Vocabulary, made: list[np.ndarray], seconds: float
) -> tuple[float, float]:
    """Return the same of PyTorch, with its fused AdamW."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, linear

    from jaxtie.training.devices import keep_memory

    keep_memory()  # as jaxtie's side has it
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    embedding, output, encoder = make_pytorch(causal, own.rows)
    parameters = [*embedding.parameters(), *encoder.parameters(), output]
    optimizer = torch.optim.AdamW(parameters, 1e-4, eps=1e-12, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000, 1e-5)
    duplicate = torch.arange(own.rows)
    duplicate[torch.tensor(own.words)] = torch.tensor(own.duplicates)

    def causal_loss(tokens: torch.Tensor) -> torch.Tensor:
        of_next = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        h = encoder(embedding(tokens), mask=of_next, is_causal=True)[:, :-1]
        logits, target = linear(h, output).flatten(0, 1), tokens[:, 1:].flatten()
        return cross_entropy(logits, target, ignore_index=PAD)

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
        nonlocal loss
        tokens = torch.from_numpy(batch).to(device).long()
        tokens = torch.where(torch.rand(tokens.shape) < 0.5, duplicate[tokens], tokens)
        loss = causal_loss(tokens) if causal else masked_loss(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    def finish() -> None:
        assert np.isfinite(loss.item())

    loss = torch.zeros(())
    one(made[0])
    return clock(one, finish, made, seconds)


def clock(
    one: Callable[[np.ndarray], None],
    finish: Callable[[], None],
    made: list[np.ndarray],
    seconds: float,
) -> tuple[float, float]:
    """Return real tokens and time of steps on batches in turn; `finish` waits for the last one."""
    finish()
    began, tokens, batches = time.perf_counter(), 0, itertools.cycle(made)
    while time.perf_counter() - began < seconds:
        batch = next(batches)
        one(batch)
        tokens += int((batch != PAD).sum())
    finish()
    return tokens, time.perf_counter() - began


def time_side(options: argparse.Namespace) -> dict[str, float]:
    """Return real tokens per second, MiB, and share of real tokens in a batch of one side."""
    rng, side = np.random.default_rng(options.seed), options.only
    ours, causal, own = side.startswith("jaxtie"), "causal" in side, Vocabulary(options.vocabulary)
    if options.text:
        own, sentences = read_sentences(options.text, options.vocabulary, rng)
    else:
        sentences = draw_sentences(own, rng)
    made = make_batches(sentences, ours, rng)
    if ours:
        tokens, seconds = time_jaxtie(causal, own, made, options.seconds)
    else:
        few = side.endswith("few")
        tokens, seconds = time_pytorch(causal, few, own, made, options.seconds)
    filled = float(np.mean([(batch != PAD).mean() for batch in made]))
    return {"rate": tokens / seconds, "mib": peak_memory(ours), "filled": filled}


def peak_memory(ours: bool) -> float:
    """Return the most memory that this process has taken, of a GPU if it used one, MiB."""
    if ours:
        import jax

        peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    else:
        import torch

        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    return (peak or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 2**20


def time_in_process(
    side: str, options: argparse.Namespace, seeds: Iterator[int]
) -> dict[str, float]:
    """Return the same from a process of its own, each time with the next seed."""
    command = [sys.executable, __file__, "--only", side, "--seed", str(next(seeds))]
    command += ["--seconds", str(options.seconds), "--vocabulary", str(options.vocabulary)]
    command += ["--text", *options.text] if options.text else []
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def show(found: dict[str, list[dict[str, float]]]) -> None:
    """Print a line for each side."""
    for side, runs in found.items():
        rates, mib, filled = ([each[name] for each in runs] for name in ("rate", "mib", "filled"))
        line = f"{side:20s} {Spread.of(rates):,.0f} tokens/s  {statistics.median(mib):7,.0f} MiB,"
        line += f" {statistics.median(filled):.0%} of a batch real"
        base = "jaxtie-" + side.split("-")[1]
        if side != base and base in found:
            ratio = Spread.of_ratios([each["rate"] for each in found[base]], rates)
            line += f"; jaxtie x {ratio:.2f}"
        print(line)


def main() -> None:
    """Measure all sides in turns, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add, entries = parser.add_argument, Vocabulary().entries
    add("--text", nargs="+", default=[], help="files or folders of sentences")
    add("--vocabulary", type=int, default=entries, help="entries (%(default)s)")
    add("--repeats", type=int, default=5, help="of each side (%(default)s)")
    add("--seconds", type=float, default=8.0, help="of each repeat (%(default)s)")
    add("--sides", default=",".join(SIDES), help="(%(default)s)")
    add("--only", choices=SIDES, help="one side, in this process")
    add("--seed", type=int, default=0, help="of sentences; each repeat has the next one")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(time_side(options)))
        return
    chosen = [side for side in options.sides.split(",") if side.startswith("jaxtie") or has_torch()]
    sides = {
        side: partial(time_in_process, side, options, itertools.count(options.seed))
        for side in chosen
    }
    found = take_turns(sides, options.repeats)
    packages = [f"{name} {version(name)}" for name in ("jax", *["torch"] * has_torch())]
    today = time.strftime("%Y-%m-%d")
    print(f"{today}, {platform.machine()}, {', '.join(packages)}; medians [range]")
    show(found)


if __name__ == "__main__":
    main()
