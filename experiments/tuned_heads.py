"""How the remedies for the high initial loss of a tied model train, each at its own learning rate, with and without a bias.

Claim (kexue.fm/archives/9698): each remedy brings the initial loss to about log n; σ = (log n)/D converges slowest, the
others alike; all end about the same.

    python -m jaxtie.hypothesis experiments/tuned_heads.py --text PATH --out runs/tuned-heads

The model of `head_convergence.py`, about one epoch of seventeen books (9,600 steps of 128 tokens), 8 seeds. Its seven heads,
each without and with an output bias, and the head of BERT (projection with bias, GELU and norm), likewise. Every arm has its
own learning rate of four: that of the lowest loss of seed 100 on one half of the validation text (blocks of 64 sentences, in
turn). Verdicts see the other half, and seeds 0 to 7. The rate falls by half a cosine to a hundredth.

Judged as written down before the run (`judge_heads` of jaxtie/text/heads.py): the four claims of the source among the heads
without a bias, and among those with one; that a bias moves no head's end by more than 0.05 nat; that BERT's head ends no more
than 0.05 nat above its projection alone. A claim holds if the intervals of the mean seed (Student's t) of all pairs that it
is about lie wholly within its bounds, fails if one lies wholly beyond, else is undecided. The intervals of one claim are
right together with 95 % (Bonferroni), over pairs and, where it looks at several shares of the way, over these.

Known when this was written: `head_convergence` at one rate; and one seed (99) of four arms after 1,200 steps, by which the
rates were chosen: of 0.0005, 0.001, 0.002, 0.004 and 0.008 the best were 0.004 tied, 0.001 untied (0.002 almost so), 0.008
with logits divided by √D (0.004 almost so), and 0.001 with BERT's head and a bias.
Until 2026-11-25, when nothing of this had been run, rates were to be chosen after half of the steps; `price_of_tying.py`
tells why they no longer are.
The lowest rate was added when seeds 0 to 3 had been run, as the best of six arms was the lowest of three; it is none's best.
Results: README.md.
Time: about five hours of two cores; killed, it goes on by the same command. It may be run in parts, `--seeds 0-3`, then
`--seeds 4-7 --rates tuned-rates.csv` with the file that the first part left; `python -m jaxtie.report` joins them.
"""

from jaxtie import Corpus, Optimiser, TextExperiment, Transformer
from jaxtie.text.tuned import Tuning

STEPS = 9_600
HEADS = (
    "tied",
    "tied+deviation=log-n-by-D",
    "untied",
    "tied+projection",
    "tied+half-swap",
    "tied+shuffle",
    "tied+logit-scale=1-by-root-D",
    "tied+bert-head",
)

benchmark = Tuning(rates=(1.5e-4, 5e-4, 1.5e-3, 4.5e-3), trial_seed=100)

experiment = TextExperiment(
    name="tuned-heads",
    claim="Remedies for a tied model's high initial loss, each at its own learning rate: which is slowest, do all end alike?",
    task="causal",
    corpus=Corpus(vocab_size=2000),
    model=Transformer(layers=1, heads=4, width=256, feedforward=256),
    deviation="1/sqrt(D)",
    optimiser=Optimiser(learning_rate=1e-3, eta_min=1e-5, half_period=STEPS, weight_decay=0.1, b2=0.99, eps=1e-8),
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
