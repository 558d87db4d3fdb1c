"""Measure the loss of fresh models, tied and untied, against two estimates in closed form.

A fresh deep network passes on the normalised embedding of its token. In a tied model the logit of
the token itself is then Dσ, so the loss starts near Dσ, far above log n; each of five remedies
brings it down to about log n (kexue.fm/archives/9698). Nothing is trained: n is 100 to 100,000,
D 16 to 2048, σ 0.02, 1, 1/√D and (log n)/D; 8 seeds of 256 tokens each.

    python experiments/lab/initial_loss.py
    python experiments/lab/initial_loss.py --tables

The first measures (8 minutes on two cores) and replaces experiments/data/initial-loss.nc, the
second reads that file. Either prints the tables.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from condense import write_committed

from jaxtie import Arm
from jaxtie.config import size
from jaxtie.results.tables import Table, format_mean, format_number
from jaxtie.text.initial_loss import estimate
from jaxtie.training.devices import start_jax
from jaxtie.tying.head import Projection
from jaxtie.tying.linen import make_embedding

EXPERIMENTS = Path(__file__).parents[1]
DATA = EXPERIMENTS / "data" / "initial-loss.nc"
ARMS = (
    "tied",
    "tied+logit-scale=1-by-root-D",
    "tied+shuffle",
    "tied+half-swap",
    "tied+projection",
    "untied",
)
WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
VOCABULARIES = (100, 1000, 10_000, 100_000)
INIT_STDS = (0.02, 1.0, "1/sqrt(D)", "log(n)/D")
SEEDS, TOKENS = range(8), 256
ESTIMATES = {"simple": False, "corrected": True}  # name -> whether it keeps the spread of logits
WORDS_AT_ONCE = 1000  # rows of the output embedding in memory
Drawn = dict[str, dict[str, jax.Array]]  # transform -> its parameters


def word_rows(key: jax.Array, words: jax.Array, width: int) -> jax.Array:
    """Rows N(0, 1) of a table as a function of the word, so that no whole table is in memory."""
    keys = jax.vmap(partial(jax.random.fold_in, key))(words)
    return jax.vmap(lambda key: jax.random.normal(key, (width,)))(keys)


def transform_of(arm: Arm, width: int) -> Callable[[jax.Array], jax.Array] | Projection | None:
    """The transform of an arm's hidden states before the output embedding."""
    return make_embedding(arm.head, 1, width, tied=arm.tied).transform


def draw_projections(arms: tuple[Arm, ...], seed: int, width: int) -> Drawn:
    """Fresh parameters of every transform that has some."""
    transforms = {arm.head.transform: transform_of(arm, width) for arm in arms}
    learned = {name: each for name, each in transforms.items() if isinstance(each, Projection)}
    return {name: _draw(each, jnp.uint32(seed), width) for name, each in learned.items()}


@partial(jax.jit, static_argnames=("projection", "width"))
def _draw(projection: Projection, seed: jax.Array, width: int) -> dict[str, jax.Array]:
    return projection.init(jax.random.key(seed), width)


@partial(jax.jit, static_argnames=("arms", "vocabulary", "width", "tokens"))
def measure(
    key: jax.Array,
    std_S: jax.Array,
    drawn: Drawn,
    *,
    arms: tuple[Arm, ...],
    vocabulary: int,
    width: int,
    tokens: int,
) -> jax.Array:
    """Initial loss for every init std and arm, nats, mean over tokens; SxA.

    The init std only multiplies logits, since the hidden state is normalised, so all share one
    table N(0, 1). The target is any word but the token itself.
    """
    keys = jax.random.split(key, 4)
    token_T = jax.random.randint(keys[0], (tokens,), 0, vocabulary)
    target_T = (token_T + jax.random.randint(keys[1], (tokens,), 1, vocabulary)) % vocabulary
    tied_TxD, untied_TxD = (_normalise(word_rows(key, token_T, width)) for key in keys[2:])
    hidden_AxTxD = jnp.stack(
        [_hidden(arm, tied_TxD if arm.tied else untied_TxD, drawn, vocabulary) for arm in arms]
    )

    def add(log_sum_SxAxT: jax.Array, block: jax.Array) -> tuple[jax.Array, None]:
        word_W = block * WORDS_AT_ONCE + jnp.arange(min(WORDS_AT_ONCE, vocabulary))
        rows_WxD = word_rows(keys[2], word_W, width)
        logits_AxTxW = jnp.einsum("atd,wd->atw", hidden_AxTxD, rows_WxD)
        logits_AxTxW = jnp.where((word_W < vocabulary)[None, None], logits_AxTxW, -jnp.inf)
        of_block = jax.lax.map(lambda std: jax.nn.logsumexp(std * logits_AxTxW, axis=-1), std_S)
        return jnp.logaddexp(log_sum_SxAxT, of_block), None

    start = jnp.full((len(std_S), len(arms), tokens), -jnp.inf)
    log_sum_SxAxT, _ = jax.lax.scan(add, start, jnp.arange(-(-vocabulary // WORDS_AT_ONCE)))
    chosen_AxT = jnp.einsum("atd,td->at", hidden_AxTxD, word_rows(keys[2], target_T, width))
    return jnp.mean(log_sum_SxAxT - std_S[:, None, None] * chosen_AxT[None], axis=-1)


def _normalise(h_TxD: jax.Array) -> jax.Array:
    return h_TxD * jnp.sqrt(h_TxD.shape[-1] / jnp.sum(h_TxD**2, axis=-1, keepdims=True))


def _hidden(arm: Arm, h_TxD: jax.Array, drawn: Drawn, vocabulary: int) -> jax.Array:
    width = h_TxD.shape[-1]
    transform = transform_of(arm, width)
    if isinstance(transform, Projection):
        h_TxD = transform.apply(drawn[arm.head.transform], h_TxD)
    elif transform is not None:
        h_TxD = transform(h_TxD)
    scale = arm.head.logit_scale
    return h_TxD if scale is None else h_TxD * size(scale, vocabulary, width)


def measure_grid(
    widths=WIDTHS, vocabularies=VOCABULARIES, seeds=SEEDS, tokens=TOKENS
) -> xr.Dataset:
    """Losses of every arm, width, vocabulary, init std and seed, with both estimates."""
    arms = tuple(map(Arm.parse, ARMS))
    losses = np.empty((len(arms), len(widths), len(vocabularies), len(seeds), len(INIT_STDS)))
    for w, width in enumerate(widths):
        for s, seed in enumerate(seeds):
            drawn = draw_projections(arms, seed, width)
            key = jax.random.fold_in(jax.random.key(jnp.uint32(seed)), 1)
            for v, n in enumerate(vocabularies):
                stds = jnp.array([size(std, n, width) for std in INIT_STDS])
                with jax.default_matmul_precision("highest"):
                    found_SxA = measure(
                        key, stds, drawn, arms=arms, vocabulary=n, width=width, tokens=tokens
                    )
                losses[:, w, v, s] = np.asarray(found_SxA).T
        print(f"width {width} done", flush=True)
    grid = ("width", "vocabulary", "deviation")

    def over_grid(value: Callable[..., float]) -> np.ndarray:
        return np.array(
            [
                [
                    [value(vocabulary=n, width=d, init_std=std) for std in INIT_STDS]
                    for n in vocabularies
                ]
                for d in widths
            ]
        )

    variables = {
        "initial_loss": (("arm", "width", "vocabulary", "seed", "deviation"), losses),
        "spread": (
            grid,
            over_grid(
                lambda vocabulary, width, init_std: width * size(init_std, vocabulary, width) ** 2
            ),
        ),
    }
    for name, corrected in ESTIMATES.items():
        values = [
            over_grid(partial(estimate, arm.head, tied=arm.tied, corrected=corrected))
            for arm in arms
        ]
        variables[name] = (("arm", *grid), np.stack(values))
    coords = {
        "arm": list(ARMS),
        "width": np.array(widths, float),
        "vocabulary": np.array(vocabularies, float),
        "deviation": list(map(str, INIT_STDS)),
        "seed": list(seeds),
    }
    return xr.Dataset(variables, coords, {"experiment": "initial-loss", "tokens": tokens})


def frame_of(results: xr.Dataset) -> pd.DataFrame:
    """One row per width, vocabulary, init std and arm: measured (mean over seeds) and estimates."""
    columns = {"measured": results["initial_loss"].astype(np.float64).mean("seed")}
    columns |= {name: results[name] for name in ("spread", *ESTIMATES)}
    return xr.Dataset(columns).to_dataframe(["width", "vocabulary", "deviation", "arm"])


def errors_table(results: xr.Dataset) -> Table:
    """How far each estimate is off, where logits spread little and where they spread much."""
    frame = frame_of(results)
    off = pd.DataFrame({name: 100 * (frame[name] / frame["measured"] - 1) for name in ESTIMATES})
    off["small"] = frame["spread"] <= 1 + 1e-9
    rows = []
    for arm, own in off.groupby("arm", sort=False):
        parts = [own[own["small"]], own[~own["small"]]]
        cells = [part[name] for part in parts for name in ESTIMATES]
        rows.append((arm, *[f"{cell.min():+.1f} … {cell.max():+.1f}" for cell in cells]))
    header = ("", *[f"{part}: {name}" for part in ("Dσ² ≤ 1", "Dσ² > 1") for name in ESTIMATES])
    title = "Estimate / measured initial loss − 1, %, lowest and highest over the grid"
    return Table(title, header, rows)


def losses_table(results: xr.Dataset) -> Table:
    """Every arm with every init std next to both estimates, at one width and vocabulary."""
    width, vocabulary = 512, 10_000
    here = results.sel(width=width, vocabulary=vocabulary)
    rows = []
    for std in here["deviation"].values:
        for arm in here["arm"].values:
            own = here.sel(deviation=std, arm=arm)
            measured, estimates = (
                own["initial_loss"].values.ravel(),
                [float(own[e]) for e in ESTIMATES],
            )
            spread = f"{float(own['spread']):.3g}"
            rows.append(
                (str(std), spread, str(arm), format_mean(measured), *map(format_number, estimates))
            )
    log_n = math.log(vocabulary)
    title = f"D {width}, n {vocabulary:,} (log n = {log_n:.3f}), mean over seeds and tokens ± 95 %"
    return Table(title, ("σ", "Dσ²", "arm", "measured, nat", *ESTIMATES), rows)


def main() -> None:
    """Measure, or read what was measured; then print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tables", action="store_true", help="measure nothing; read the data")
    if not parser.parse_args().tables:
        start_jax()
        write_committed(measure_grid(), DATA)
    results = xr.load_dataset(DATA, engine="h5netcdf").isel(
        step=0, drop=True, missing_dims="ignore"
    )
    print(losses_table(results).markdown(), errors_table(results).markdown(), sep="\n")


if __name__ == "__main__":
    main()
