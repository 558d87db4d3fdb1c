"""Which role writes a tied table on causal text, and whose is it then? Updates are split by role.

Claims: as on EXor (`gradient_roles.py`): the tied table ends nearer to the untied output table
(Press and Wolf 2017), for the output role writes most of it early in training, and less so if the
input role's gradient is scaled up (Lopardo et al. 2026).

    jaxtie run gradient_roles_text --text PATH

A size for one core: thirty members. Tokens are grouped by how frequent they are. What is claimed,
and by which margin, stands below and was written before the run, when shares over 200 steps of one
other seed had been seen. The rule stands
in `jaxtie/results/claims.py`.
Results, on seventeen books of Project Gutenberg: results/gradient-roles-text.md.
Time: 15 min on one core of an AMD EPYC.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer
from jaxtie.results.claims import Claim

SCALED = tuple(f"tied+input-gradient={factor}" for factor in ("0", "0.5", "2", "5", "10"))
UP = "tied+input-gradient=5"

experiment = TextExperiment(
    name="gradient-roles-text",
    claim=(
        "Gradients of the output role write most of the tied table, and it ends nearer to the"
        " untied output table."
    ),
    objective="causal",
    corpus=Corpus(vocab_size=2_048, split_key="bytes", form="sentences"),
    model=Transformer(layers=1, heads=4, width=64, feedforward=256),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.01, half_period=1_000),
    arms=(
        "tied",
        "tied+output-start",
        *SCALED,
        f"{UP}+output-start",
        "tied+output-gradient=0",
        "untied",
    ),
    steps=1_000,
    seeds=(0, 1, 2),
    record_every=50,
    eval_every=500,
    eval_batches=100,
    batch=8,
    length=64,
    duplicates=False,
    roles=True,
)

EITHER_START = {"tied": 0.5, "tied+output-start": 0.5}
BY_SCALING = {UP: 0.5, f"{UP}+output-start": 0.5, "tied": -0.5, "tied+output-start": -0.5}
MEASURES = ("CKA", "order of distances", "linear map", "neighbours")
PRESS_AND_WOLF, LOPARDO = "Press and Wolf (2017)", "Lopardo et al. (2026)"

claims = (
    *(
        Claim(
            "The tied table ends nearer to the untied output table.",
            f"nearness by {measure}",
            EITHER_START,
            low=0,
            source=PRESS_AND_WOLF,
        )
        for measure in MEASURES
    ),
    Claim(
        "Early, the output role writes more than half.",
        "output share, early",
        EITHER_START,
        low=0.5,
        source=LOPARDO,
    ),
    *(
        Claim(
            "Five times the input role's gradient brings it nearer to the input table.",
            f"nearness by {measure}",
            BY_SCALING,
            high=0,
            source=LOPARDO,
        )
        for measure in MEASURES
    ),
    Claim(
        "Later, the output role's share is lower.",
        "output share, early less later",
        EITHER_START,
        low=0,
    ),
)
