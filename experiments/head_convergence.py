"""How do remedies for a tied model's high initial loss train, from one start and on the same text?

Claim (kexue.fm/archives/9698): each remedy brings the initial loss to about log n; σ = (log n)/D
converges slowest, the others alike; all end about the same.
Found: σ = (log n)/D is slowest only late in training, and not all end about the same.

    jaxtie run head_convergence --text PATH

One causal pre-norm layer, D 256, n 2000, tables N(0, 1/D) unless the arm says otherwise, so that
tied starts near √D = 16, far above log n; 3,000 updates on 4 rows of 32 tokens, 8 seeds; AdamW,
learning rate 1e-3 to 1e-5 by half a cosine, one for all heads. Of a few books that is less than an
epoch: the learning rate has come to its end then, the model has not. Whether a claim holds is for
the intervals over seeds to say, by the rule in `summary.md`.
No results are committed; those of tuned rates are: results/tuned-heads.md.
Time: 75 min on two cores of an AMD EPYC that other work used too; 6 min an arm when it had a core
of its own.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer

experiment = TextExperiment(
    name="head-convergence",
    claim=(
        "Of the remedies for a tied model's high initial loss, σ = (log n)/D converges "
        "slowest; all end about the same."
    ),
    objective="causal",
    corpus=Corpus(vocab_size=2000, split_key="bytes", form="sentences"),
    model=Transformer(layers=1, heads=4, width=256, feedforward=256),
    init_std="1/sqrt(D)",
    optimizer=Optimizer(
        learning_rate=1e-3, eta_min=1e-5, half_period=3000, weight_decay=0.1, b2=0.99, eps=1e-8
    ),
    arms=(
        "tied",
        "tied+init-std=log-n-by-D",
        "untied",
        "tied+projection",
        "tied+half-swap",
        "tied+shuffle",
        "tied+logit-scale=1-by-root-D",
    ),
    steps=3000,
    seeds=tuple(range(8)),
    record_every=25,
    eval_every=25,
    eval_batches=16,
    batch=4,
    length=32,
    duplicates=False,
)
