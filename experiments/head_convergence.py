"""How the remedies for the high initial loss of a tied model train: from the same start, on the same batches of real text.

Claims (kexue.fm/archives/9698): each remedy brings the initial loss to about log n; σ = (log n)/D converges slowest, the
others alike; all end about the same.

    python -m jaxtie.run experiments/head_convergence.py --text FOLDER

One pre-norm layer, D 256, n 2000 (so √D = 16 against log n = 7.6), 3,000 updates on 4 rows of 32 tokens each, 8 seeds;
AdamW, learning rate 1e-3 to 1e-5 by half a cosine, one for all heads. That is a quarter of an epoch of 17 Gutenberg books:
the learning rate has come to its end then, the model has not. Whether a claim holds is for the intervals to say, by the
rule in `summary.md`.
Seen on 17 books of Project Gutenberg: all start within 1 nat of log n (holds); σ = (log n)/D is slowest (fails half of the
way, undecided at 75 %, holds at 90 % and 95 %); the others alike to within 10 % (undecided); all end within 0.05 nat (fails:
0.088 more than untied with σ = (log n)/D, the others within 0.025).
Time: 3 min a head of the seven on two cores of an AMD EPYC (the last four heads, measured); a finished head is kept.
"""

from jaxtie import HeadConvergence

experiment = HeadConvergence(
    claim="Remedies for a tied model's high initial loss, trained alike: which is slowest, and do all end about the same?"
)
