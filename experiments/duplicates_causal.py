"""Do a word and its duplicate draw together in a small causal model, as the hypothesis says?

Of the 100 most frequent words every second one has a duplicate that is as likely as the word
(probability 0.5, as published), the others one that is nine times less likely (0.1). Both are
equivalent as inputs; as outputs the latter differ by ln 9 in every context, which an output bias
can carry. Beside them stand pairs of other tokens that are as frequent.

Claims: below, by the rule in `jaxtie/results/claims.py`. They, the margins, the size and the seeds
were written before the run,
when one trial had been seen: another seed (100), 1,000 steps of the same model, tied and untied,
without a bias.
Found: Duplicates as likely as their words stay nearer than tokens as frequent; rarer ones less
where they write logits.

    jaxtie run duplicates_causal --text PATH

Results, on seventeen books of Project Gutenberg, split by book:
results/duplicates-causal.md.
Time: 41 min of two cores of an AMD EPYC that had much other work.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer
from jaxtie.results.claims import PAPER
from jaxtie.text.claims import TextClaim

EVEN, RARE = 0.5, 0.1
FARTHER = 1.25  # a distance so many times another is farther; its inverse: nearer
KNOWN = 0.2  # nat; log-odds that are off by less are known
AT_EVEN, AT_RARE = (f"duplicates at {each:g}" for each in (EVEN, RARE))

experiment = TextExperiment(
    name="duplicates-causal",
    claim=(
        "Duplicates that are as likely as their words draw together; rarer ones are held "
        "apart where they write logits."
    ),
    objective="causal",
    corpus=Corpus(vocab_size=2_048, split_key="bytes", form="sentences"),
    model=Transformer(layers=1, heads=4, width=64, feedforward=256),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=2e-3, weight_decay=0.01, half_period=1_000),
    arms=("tied", "tied+bias", "untied", "untied@1/2"),
    steps=1_000,
    seeds=(0, 1, 2),
    record_every=100,
    eval_every=1_000,
    eval_batches=50,
    batch=16,
    length=64,
    duplicates=(EVEN, RARE),
    contexts=8,
)


def nearer(arm: str, table: str, probability: float, source: str = "") -> TextClaim:
    where = f" in the {table} table" if table else ""
    statement = (
        f"{arm.capitalize()}, a word and its duplicate at {probability:g} end nearer{where}"
        " than tokens as frequent."
    )
    place = f"{arm} {table}".strip()
    terms = {
        f"{place}, duplicates at {probability:g}": 1.0,
        f"{place}, as frequent as at {probability:g}": -1.0,
    }
    return TextClaim(statement, "decay ratio", terms, high=1 / FARTHER, source=source)


def apart(arm: str, table: str) -> TextClaim:
    where = f" in the {table} table" if table else ""
    statement = (
        f"{arm.capitalize()}, duplicates that are 9 times rarer stay farther{where} than"
        " those as likely."
    )
    place = f"{arm} {table}".strip()
    terms = {f"{place}, {AT_RARE}": 1.0, f"{place}, {AT_EVEN}": -1.0}
    return TextClaim(statement, "decay ratio", terms, low=FARTHER)


def of_both(more: str, less: str) -> dict[str, float]:
    """Compare rarer duplicates by those as likely, in one arm by another."""
    return {
        f"{more}, {AT_RARE}": 1.0,
        f"{less}, {AT_EVEN}": 1.0,
        f"{more}, {AT_EVEN}": -1.0,
        f"{less}, {AT_RARE}": -1.0,
    }


claims = (
    nearer("tied", "", EVEN, PAPER),
    nearer("untied", "input", EVEN, PAPER),
    nearer("untied", "output", EVEN, PAPER),
    apart("tied", ""),
    apart("untied", "output"),
    nearer("untied", "input", RARE),
    TextClaim(
        "A bias takes over what holds rarer duplicates apart, tied.",
        "decay ratio",
        of_both("tied+bias", "tied"),
        high=1 / FARTHER,
    ),
    TextClaim(
        "Untied midway, rarer duplicates end nearer in the input table than in the tied one.",
        "decay ratio",
        {f"untied@500 input, {AT_RARE}": 1.0, f"tied, {AT_RARE}": -1.0},
        high=1 / FARTHER,
    ),
    *(
        TextClaim(
            f"{arm.capitalize()}, the odds of a word and its rarer duplicate are known to"
            f" within {KNOWN:g} nat.",
            "error of log-odds",
            f"{arm}, {AT_RARE}",
            -KNOWN,
            KNOWN,
        )
        for arm in ("tied", "untied")
    ),
    TextClaim(
        "Tied, a rarer duplicate moves predictions less than half as much as a token as frequent.",
        "swap divergence",
        {f"tied, {AT_RARE}": 1.0, f"tied, as frequent as at {RARE:g}": -1.0},
        high=0.5,
    ),
    TextClaim(
        "Tied, rarer duplicates are farther from one meaning than untied.",
        "swap divergence",
        of_both("tied", "untied"),
        low=1.0,
    ),
    TextClaim(
        "A bias lowers the tied loss.", "validation loss", {"tied+bias": 1.0, "tied": -1.0}, high=0
    ),
)
