"""Models of real text that differ in their heads alone, trained from the same initial values on the same batches.

Whatever two heads share they draw alike: a seed's input table is the same numbers times the head's deviation, its body the
same numbers. Batches are a function of seed and step. All seeds of a head are one program, `vmap` over them: on two CPU cores
that takes as long as one after the other (17 ms a seed-step at width 256, either way).
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import xarray as xr

from jaxtie import convergence, optim, theory
from jaxtie.config import HeadConvergence
from jaxtie.convergence import HALF_SWAP, PROJECTION, SCALED, SHUFFLE, SMALL, TIED, UNTIED
from jaxtie.data.batches import CausalBatches
from jaxtie.data.masking import next_tokens
from jaxtie.data.text import Text
from jaxtie.models.embedding import Embedding, Projection, channel_shuffle, half_swap
from jaxtie.models.text import TextModel, causal_model
from jaxtie.progress import PLAIN_SECONDS, duration
from jaxtie.results import RunFolder
from jaxtie.sweep import FAST, ONCE
from jaxtie.train import initial_state
from jaxtie.train_text import make_evaluation, make_step

# How each head differs from an untied one with tables N(0, 1/D).
HEADS: dict[str, dict[str, Any]] = {
    TIED: {"tied": True},
    SMALL: {"tied": True, "deviation": "log(n)/D"},
    UNTIED: {},
    PROJECTION: {"tied": True, "transform": Projection()},
    HALF_SWAP: {"tied": True, "transform": half_swap},
    SHUFFLE: {"tied": True, "transform": partial(channel_shuffle, groups=2)},
    SCALED: {"tied": True, "logit_scale": "1/sqrt(D)"},
}
Say = Callable[[str], None]


def make_model(study: HeadConvergence, head: str, vocabulary: int) -> TextModel:
    """The study's body with a head."""
    embedding = Embedding(vocabulary, study.width, **({"deviation": "1/sqrt(D)"} | HEADS[head]))
    return causal_model(embedding, layers=study.layers, heads=study.attention_heads, feedforward=study.feedforward)


def estimate(study: HeadConvergence, head: str, vocabulary: int) -> float:
    """What `theory.initial_loss` says that a head starts at, nats."""
    embedding = make_model(study, head, vocabulary).embedding
    size = partial(theory.size, vocabulary=vocabulary, width=study.width)
    overlap = {TIED: 1, SMALL: 1, SCALED: 1, SHUFFLE: 2 / study.width}.get(head, 0)  # see `initial_loss.VARIANTS`
    scale = size(embedding.logit_scale or 1)
    return theory.initial_loss(vocabulary, study.width, size(embedding.deviation), overlap=overlap, logit_scale=scale)


def make_programs(study: HeadConvergence, head: str, vocabulary: int, padding: int) -> tuple[Callable, Callable]:
    """What one head's seeds do, all at once. S seeds, B rows of L + 1 tokens, E updates from a record to the next.

    Returns:
      `start`: (seeds S, first batch SxBx(L+1), validation rows SxRx(L+1)) -> (states, record before any update).
      `advance`: (states, batches SxExBx(L+1), validation rows) -> (states, record); the states are donated.
      A record is the mean training loss of the batches since the one before, and the validation loss now; both S, nats.
    """
    model, settings = make_model(study, head, vocabulary), study.optimiser
    schedule = optim.periodic_cosine(settings.learning_rate, settings.eta_min, settings.half_period)
    decay, momenta = settings.weight_decay, {"b1": settings.b1, "b2": settings.b2, "eps": settings.eps}
    adamw = optim.adamw(schedule, weight_decay=decay, **momenta)
    ask = lambda key, tokens_BxL: next_tokens(tokens_BxL, padding=padding)
    step, look = make_step(model, adamw, ask), make_evaluation(model, ask)
    loss_of = lambda params, tokens_BxL: look(params, tokens_BxL, None).loss

    def start(seed, tokens_BxL, valid_RxL):
        state = initial_state(model, adamw, jax.random.key(seed), study.length)
        return state, (loss_of(state.params, tokens_BxL), loss_of(state.params, valid_RxL))

    def advance(state, tokens_ExBxL, valid_RxL):
        def update(state, tokens_BxL):
            state, looked_at = step(state, tokens_BxL, None)
            return state, looked_at.loss

        state, loss_E = jax.lax.scan(update, state, tokens_ExBxL)
        return state, (loss_E.mean(), loss_of(state.params, valid_RxL))

    platform = jax.default_backend()
    start = jax.jit(jax.vmap(start), compiler_options=ONCE.get(platform))
    return start, jax.jit(jax.vmap(advance), donate_argnums=0, compiler_options=FAST.get(platform))


def train(study: HeadConvergence, head: str, text: Text, say: Say = lambda line: None) -> tuple[np.ndarray, np.ndarray]:
    """Train all seeds of a head; training and validation loss at every record, each seeds x records, nats.

    Raises:
      UserError: where a split of the text does not fill one batch.
    """
    start, advance = make_programs(study, head, len(text.vocabulary), text.special.pad)
    batches = [CausalBatches(text.train, text.special, study.batch_size, study.length, seed) for seed in study.seeds]
    rows = [CausalBatches(text.valid, text.special, study.valid_rows, study.length, seed) for seed in study.seeds]
    valid_SxRxL = jax.device_put(np.stack([each[0].tokens_BxL for each in rows]))
    tokens_of = lambda steps: np.stack([[each[step].tokens_BxL for step in steps] for each in batches])
    say(f"{head}: compiling")
    state, record = start(np.array(study.seeds, np.uint32), tokens_of([0])[:, 0], valid_SxRxL)
    records, began, shown = [record], None, -math.inf
    for step in study.record_steps[1:]:
        state, record = advance(state, tokens_of(range(step - study.eval_every, step)), valid_SxRxL)
        records.append([np.asarray(loss_S) for loss_S in record])
        now = time.monotonic()
        began = began or (now, step)  # the rate is that of training alone, without compilation
        if step == study.steps or now - shown > PLAIN_SECONDS:
            shown, rate = now, (step - began[1]) / (now - began[0]) if now > began[0] else 0
            left = f", {rate:,.1f} steps/s, {duration((study.steps - step) / rate)} left" if rate else ""
            say(f"{head}: {step:,}/{study.steps:,} steps, validation loss {np.median(records[-1][1]):.3f}{left}")
    loss_SxT, valid_SxT = np.moveaxis(np.array(records), 0, -1)
    return loss_SxT, valid_SxT


def _nothing_yet(study: HeadConvergence, text: Text, command: str) -> xr.Dataset:
    """The dataset before any head was trained: NaN."""
    sizes = {"head": len(HEADS), "seed": len(study.seeds), "step": len(study.record_steps)}
    blank = lambda *names: (names, np.full([sizes[name] for name in names], np.nan, np.float32))
    n = len(text.vocabulary)
    model = f"{study.layers} causal pre-norm layer(s), width {study.width}, {study.attention_heads} heads, feed-forward "
    model += f"{study.feedforward}; n = {n:,}; {study.steps:,} updates on {study.batch_size} x {study.length} tokens; AdamW, "
    model += f"learning rate {study.learning_rate:g} to {study.eta_min:g} by half a cosine, decay {study.weight_decay:g}"
    results = xr.Dataset(
        {
            "loss": blank("head", "seed", "step"),
            "valid_loss": blank("head", "seed", "step"),
            "estimate": ("head", [estimate(study, head, n) for head in HEADS]),
            "seconds": blank("head"),
        },
        {"head": list(HEADS), "seed": np.array(study.seeds, np.int64), "step": np.array(study.record_steps, np.int64)},
        {"experiment": study.name, "claim": study.claim, "command": command, "model": model, "text": str(text.report)},
    )
    results.attrs |= {"vocabulary": n, "shares": np.array(study.shares)}
    units = {"loss": ("nat", "training loss: mean over the batches of the updates since the record before")}
    units["valid_loss"] = "nat", "loss on rows of the validation split, drawn per seed"
    units["estimate"] = "nat", "corrected estimate of the initial loss"
    units["seconds"] = "s", "wall time of all seeds of a head, compilation included; NaN: not trained yet"
    for name, (unit, meaning) in units.items():
        results[name].attrs = {"units": unit, "long_name": meaning}
    return results


def main(study: HeadConvergence, text: Text, folder: RunFolder, command: str, say: Say = print) -> float:
    """Train the heads that `results.nc` does not have yet; leave it, `summary.md` and `figures/` in the folder.

    Returns:
      The wall time of all heads, seconds.
    """
    results = folder.load() if folder.results.exists() else _nothing_yet(study, text, command)
    results.attrs["claim"] = study.claim  # which may be put otherwise by now
    for head in HEADS:
        if np.isfinite(results["seconds"].sel(head=head)):
            say(f"{head}: trained before")
            continue
        began = time.monotonic()
        losses = train(study, head, text, say)
        for name, values in zip(("loss", "valid_loss"), losses, strict=True):
            results[name].loc[{"head": head}] = values
        results["seconds"].loc[{"head": head}] = time.monotonic() - began
        folder.write_results(results)
    convergence.draw(results, folder.figures)
    folder.summary.write_text(convergence.markdown(results), encoding="utf-8")
    return float(results["seconds"].sum())
