"""The benchmark of known truth: does the predicted price of one table, G, go with what it costs, and which rule is best?

Claim: G ranks data sets as their measured costs do, and a rule on G regrets less than any other rule does.

    python -m jaxtie.hypothesis experiments/hypothesis_known.py --out runs/hypothesis-known

24 data sets: three strengths by two widths by four classes of pairs, one class in each source (jaxtie/hypothesis/sources.py).
Words obey the hypothesis, so what is planted alone breaks it. Duplicates get stronger by their number (a share of the text),
skewed ones by their odds, allomorphs by how often the left token chooses (in one of eight ways), antonyms by how often the
next word is permuted. Six sources are there to choose thresholds by, the six others to judge them; none is in both halves.
Sizes were chosen on pilot sources (of seed 99) that are not among these, at the strongest strength and widths of 8 to 32.

Judged as written down before the run (`predictions` below, and `judge_prices` of jaxtie/hypothesis/costs.py): bounds are 0 or
0.01 nat; the intervals of a claim are right together with 95 %. G goes with the cost if Spearman's ρ on the held-out half is
above 0; a rule on G, its threshold from the other half, is better than a rival if that regrets more on the held-out half.
Results: jaxtie/hypothesis/README.md.
Time: about an hour of one core; it uses little more than one. Killed, it goes on by the same command.
"""

from jaxtie import Optimiser, TextExperiment, Transformer
from jaxtie.hypothesis.benchmark import Benchmark, Prediction
from jaxtie.hypothesis.sources import Plan

STEPS, D = 1_000, 0.01  # D: nats
ANY = float("inf")


def duplicates(pairs: int) -> Plan:
    """So many fair duplicates; other words fill the vocabulary up to 256."""
    return Plan(pairs=(pairs, 0, 0, 0), plain=95 + 2 * (64 - pairs), homograph=False, aligned=True, seed=1)


skewed = Plan(pairs=(0, 64, 0, 0), plain=95, homograph=False, aligned=True, seed=2)
allomorph = Plan(pairs=(0, 0, 64, 0), plain=95, homograph=False, aligned=True, sides=8, seed=3)
antonym = Plan(pairs=(0, 0, 0, 64), plain=95, homograph=False, aligned=True, seed=4)

benchmark = Benchmark(
    plans=(
        ("duplicate", tuple(duplicates(pairs) for pairs in (16, 32, 64))),
        ("skewed duplicate", tuple(skewed._replace(skew=p) for p in (0.3, 0.2, 0.1))),
        ("allomorph", tuple(allomorph._replace(follow=f) for f in (0.5, 0.8, 0.96))),
        ("antonym", tuple(antonym._replace(permuted=x) for x in (0.25, 0.5, 1.0))),
    ),
    widths=(12, 24),
    sentences=24_000,
    length=64,
    threshold=D,
    predictions=(
        Prediction("duplicates cost nothing, tied", "tied", ("duplicate",), -ANY, D),
        Prediction("skewed duplicates cost tied", "tied", ("skewed duplicate",), D, ANY, "strongest"),
        Prediction("skewed duplicates cost nothing, tied with a bias", "tied+bias", ("skewed duplicate",), -ANY, D),
        Prediction("cost tied with a bias", "tied+bias", ("allomorph", "antonym"), D, ANY, "strongest"),
        Prediction("cost more, the stronger", "tied+bias", ("allomorph", "antonym"), 0, ANY, "by strength"),
        Prediction("cost less, the wider", "tied+bias", ("allomorph", "antonym"), 0, ANY, "by width"),
    ),
)
experiment = TextExperiment(
    name="hypothesis-known",
    claim="The price of one table that two untied models predict goes with what one table costs.",
    task="causal",
    model=Transformer(layers=1, heads=2, width=12, feedforward=48),
    deviation=0.02,
    optimiser=Optimiser(learning_rate=1e-2, weight_decay=0.01, half_period=STEPS),
    arms=("tied", "tied+bias", "untied", f"untied@{STEPS // 2}"),
    steps=STEPS,
    seeds=range(8),
    record_every=50,
    eval_every=100,
    eval_batches=64,
    batch=16,
    length=32,
    words=8,
    duplicates=False,
)
