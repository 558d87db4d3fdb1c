"""How do remedies for a tied model's high initial loss train, with and without an output bias?

Claim (kexue.fm/archives/9698): each remedy brings the initial loss to about log n; σ = (log n)/D
converges slowest, the others alike; all end about the same.

The data are experiments/data/tuned-heads.nc and tuned-heads-tuned-rates.csv. A version of
the project before this file last changed trained and judged it: commit 23a757e has the code, the
figure, and the claims that were written down before the run. Every arm had its own learning rate,
of 0.00015, 0.0005, 0.0015 and 0.0045.

Below are the same arms, all at one learning rate, 0.001; so a difference between two of them may be
one of learning rates. The model is that of `head_convergence.py`, about one epoch of seventeen
books (9,600 steps of 128 tokens), 8 seeds, seven heads without and with an output bias, and the
head of BERT (projection with bias, GELU and norm), likewise. The rate falls by half a cosine to a
hundredth.

    jaxtie run tuned_heads_one_rate --text PATH

Results, of each arm at its own rate: results/tuned-heads.md.
Time: about three hours of two cores.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer

STEPS = 9_600
HEADS = (
    "tied",
    "tied+init-std=log-n-by-D",
    "untied",
    "tied+projection",
    "tied+half-swap",
    "tied+shuffle",
    "tied+logit-scale=1-by-root-D",
    "tied+bert-head",
)

experiment = TextExperiment(
    name="tuned-heads-one-rate",  # so that a run of it never replaces those data
    claim=(
        "Remedies for a tied model's high initial loss, each at its own learning rate: which is"
        " slowest, do all end alike?"
    ),
    objective="causal",
    corpus=Corpus(vocab_size=2000, split_key="bytes", form="sentences"),
    model=Transformer(layers=1, heads=4, width=256, feedforward=256),
    init_std="1/sqrt(D)",
    optimizer=Optimizer(
        learning_rate=1e-3, eta_min=1e-5, half_period=STEPS, weight_decay=0.1, b2=0.99, eps=1e-8
    ),
    arms=(*HEADS, *(f"{head}+bias" for head in HEADS)),
    steps=STEPS,
    seeds=tuple(range(8)),
    record_every=100,
    eval_every=100,
    eval_batches=64,
    batch=4,
    length=32,
    duplicates=False,
)
