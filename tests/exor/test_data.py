"""The split is the published one; samples and enumerated contexts have the same distribution."""

import itertools
import random
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxtie.exor import data
from jaxtie.training.task import stream

ZEROS, ONES = (0.1, 0.9), (0.5, 0.5)
STEPS = 10_000  # of 114 samples: 1.14 million
SPLIT = data.split(7, False, 14)


def spell(bits_Bxn: np.ndarray) -> list[str]:
    return ["".join(map(str, bits)) for bits in bits_Bxn]


def test_split_is_the_published_one():
    strings = [f"{number:07b}" for number in range(127)]
    random.Random(14).shuffle(strings)
    assert [spell(part) for part in SPLIT] == [strings[:114], strings[114:126], strings[126:]]
    assert spell(SPLIT.train[:3]) == ["1101010", "1110001", "0100111"]
    assert spell(SPLIT.valid[:2]) == ["1011101", "0100101"] and spell(SPLIT.test) == ["0001101"]


def test_all_strings_adds_the_string_of_ones():
    default, complete = (
        set(itertools.chain(*map(spell, data.split(7, every, 14)))) for every in (False, True)
    )
    assert len(default) == 127 and len(complete) == 128 and complete - default == {"1111111"}


def test_data_seed_changes_the_split():
    assert spell(data.split(7, False, 15).train) != spell(SPLIT.train)


def with_target(batch: data.Batch) -> np.ndarray:
    """The tokens with the masked one back in its place."""
    symbols = np.array(batch.tokens_BxL)
    np.put_along_axis(symbols, np.asarray(batch.at_BxP), np.asarray(batch.target_BxP), axis=-1)
    return symbols


def draw(*how) -> data.Batch:
    """Sample 10,000 steps [T, B, ...]."""
    one = jax.vmap(lambda step: data.sample(stream(14, 42), step, SPLIT.train, *how))
    return jax.device_get(jax.jit(one)(jnp.arange(STEPS)))


@pytest.fixture(scope="module")
def draws() -> tuple[data.Batch, np.ndarray]:
    """Samples, and their tokens unmasked."""
    batch = draw(ZEROS, ONES)
    return batch, with_target(batch)


def chi_square(observed, expected, constraints: int = 1) -> float:
    """Return p of counts; cells too rare for the approximation are merged."""
    observed, expected = np.ravel(observed), np.ravel(expected)
    rare = expected < 10

    def merge(counts):
        return np.append(counts[~rare], counts[rare].sum()) if rare.any() else counts

    return stats.chisquare(merge(observed), merge(expected), ddof=constraints - 1).pvalue


def surprise(symbols: np.ndarray) -> np.ndarray:
    """Return by how much each bit's symbol (first 0, second 1) exceeds its expectation."""
    return symbols[..., :7] % 2 - np.where(SPLIT.train == 0, ZEROS[1], ONES[1])[None]


def independence(a: np.ndarray, b: np.ndarray) -> float:
    """Return p of the correlation of two centred arrays."""
    return 2 * stats.norm.sf(abs(np.sum(a * b)) / np.sqrt(np.sum(a**2 * b**2)))


def test_samples_write_their_strings(draws):
    (tokens, at, target), symbols = draws
    assert tokens.dtype == at.dtype == target.dtype == np.int32
    assert tokens.shape == (STEPS, 114, 8) and at.shape == target.shape == (STEPS, 114, 1)
    is_mask = tokens == 6
    assert np.array_equal(is_mask.sum(-1), np.ones((STEPS, 114))) and not is_mask[..., 7].any()
    assert np.array_equal(is_mask.argmax(-1), at[..., 0])
    assert symbols[..., :7].min() == 0 and symbols[..., :7].max() == 3
    assert np.array_equal(symbols[..., :7] // 2, np.broadcast_to(SPLIT.train, (STEPS, 114, 7)))
    labels = [4 if string.count("1") % 2 == 0 else 5 for string in spell(SPLIT.train)]
    assert np.array_equal(symbols[..., 7], np.broadcast_to(labels, (STEPS, 114)))


def test_masks_are_uniform_and_do_not_depend_on_the_string(draws):
    at = draws[0].at_BxP[..., 0]
    counts = np.stack([(at == position).sum(0) for position in range(7)])
    assert chi_square(counts.sum(1), np.full(7, 114 * STEPS / 7)) > 1e-3
    assert chi_square(counts, np.full((7, 114), STEPS / 7), constraints=114) > 1e-3


def test_draws_do_not_depend_on_each_other(draws):
    """Neighbouring symbols, a symbol and the masked position, and one step and the next."""
    (_, at, _), symbols = draws
    excess = surprise(symbols)
    pairs = {
        "neighbours": (excess[..., :-1], excess[..., 1:]),
        "steps": (excess[:-1], excess[1:]),
        "strings": (excess[:, :-1], excess[:, 1:]),
        "mask": (excess, (at == np.arange(7)) - 1 / 7),
        "mask, steps": (at[:-1] - 3.0, at[1:] - 3.0),
    }
    for name, (a, b) in pairs.items():
        assert independence(a, b) > 1e-3, name


def test_seeds_have_streams_of_their_own():
    streams = jax.vmap(lambda seed: stream(14, seed))(jnp.arange(1_000))
    streams = jnp.concatenate([stream(15, 0)[None], streams])
    assert len(np.unique(streams, axis=0)) == 1_001
    batch = jax.jit(jax.vmap(lambda own: data.sample(own, 0, SPLIT.train, ZEROS, ONES)))(streams)
    excess = surprise(with_target(batch))
    assert independence(excess[:-1], excess[1:]) > 1e-3


@pytest.mark.parametrize(
    ("bits", "ordered", "count"),
    [(SPLIT.train, False, 161), (SPLIT.valid, False, 135), (SPLIT.valid, True, 5_376)],
)
def test_contexts_are_counted(bits, ordered, count):
    tokens, at, joint = data.enumerate_contexts(bits, ZEROS, ONES, ordered=ordered)
    assert tokens.shape == (count, 8) and at.shape == (count, 1) and joint.shape == (count, 7)
    assert joint.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(np.take_along_axis(tokens, at, axis=1) == 6) and np.sum(tokens == 6) == count


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("zeros", "ones"), [(ZEROS, ONES), ((1.0, 0.0), (0.25, 0.75))])
def test_contexts_are_those_of_brute_force(ordered, zeros, ones):
    bits = data.split(4, False, 14).train
    probability = dict(zip("XYAB", (*zeros, *ones)))
    expected = defaultdict(float)
    for string, at in itertools.product(spell(bits), range(4)):
        for symbols in itertools.product(*("XY" if bit == "0" else "AB" for bit in string)):
            label = "ED"[string.count("1") % 2]
            context = (*symbols[:at], "M", *symbols[at + 1 :], label)
            context = context if ordered else tuple(sorted(context, key="XYABEDM".index))
            p = np.prod([probability[symbol] for symbol in symbols])
            expected[context, symbols[at]] += p / (len(bits) * 4)
    tokens, _, joint = data.enumerate_contexts(bits, zeros, ones, ordered=ordered)
    names = [tuple("XYABEDM"[token] for token in context) for context in tokens]
    ours = {
        (names[context], "XYABEDM"[target]): joint[context, target]
        for context, target in np.argwhere(joint)
    }
    assert len({context for context, _ in ours}) == joint.any(axis=1).sum()
    assert ours == pytest.approx({event: p for event, p in expected.items() if p > 0}, abs=1e-15)


def count_contexts(batch: data.Batch, contexts: data.Contexts) -> np.ndarray:
    """Count how often each enumerated context and target was drawn; KeyError for another one."""
    number = {tuple(tokens): at for at, tokens in enumerate(contexts.tokens_CxL.tolist())}
    counts = np.zeros(contexts.joint_CxV.shape)
    drawn = np.concatenate([np.sort(batch.tokens_BxL, axis=-1), batch.target_BxP], axis=-1)
    for row, count in zip(*np.unique(drawn.reshape(-1, 9), axis=0, return_counts=True)):
        counts[number[tuple(row[:8].tolist())], row[8]] = count
    return counts


@pytest.mark.parametrize("by_label", [False, True])
def test_contexts_are_as_frequent_as_enumerated(draws, by_label):
    """Each string comes once a step, so counts vary a little less than multinomial ones."""
    own = ((0.2, 0.8), (0.3, 0.7)) if by_label else (ZEROS, ONES)
    batch = draw(*own, True) if by_label else draws[0]
    contexts, other = (
        data.enumerate_contexts(SPLIT.train, *own, ordered=False, zeros_by_label=each)
        for each in (by_label, not by_label)
    )
    assert contexts.joint_CxV.sum() == pytest.approx(1)
    counts, possible = count_contexts(batch, contexts), contexts.joint_CxV > 0
    assert counts.sum() == 114 * STEPS and not counts[~possible].any()
    assert chi_square(counts[possible], contexts.joint_CxV[possible] * counts.sum()) > 1e-3
    # the label matters
    assert chi_square(counts[possible], other.joint_CxV[possible] * counts.sum()) < 1e-6


def test_stream_is_the_one_that_published_figures_were_made_with():
    """If it changes on purpose, run the experiments and their tables again."""
    batch = data.sample(stream(14, 42), 1000, SPLIT.train[:3], ZEROS, ONES)
    assert batch.tokens_BxL.tolist() == [
        [6, 2, 1, 2, 1, 3, 1, 4],
        [2, 3, 3, 1, 1, 6, 3, 4],
        [1, 3, 1, 1, 2, 6, 3, 4],
    ]
    assert batch.target_BxP.tolist() == [[2], [1], [3]]
