"""How the remedies for the high initial loss of a tied model train: from the same start, on the same batches of real text.

Claims (kexue.fm/archives/9698): each remedy brings the initial loss to about log n; σ = (log n)/D converges slowest, the
others alike; all end about the same.

    python -m jaxtie.run experiments/head_convergence.py --text FOLDER

One pre-norm layer, D 256, n 2000 (so √D = 16 against log n = 7.6), 3,000 updates on 4 rows of 32 tokens each, 8 seeds.
"""

from jaxtie import HeadConvergence

experiment = HeadConvergence(
    claim="Of the remedies for a tied model's high initial loss, σ = (log n)/D converges slowest; all end about the same."
)
