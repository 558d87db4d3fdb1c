"""The optimizers of Optax that keep something of the parameters, plain and wrapped.

`CASES` are few, each of which keeps something else: for tests that train, or compare values.
"""

from collections.abc import Iterable

import jax
import optax
import pytest
from optax import contrib

ALIASES = """
    adabelief adadelta adafactor adagrad adam adamax adamw adan amsgrad fromage lamb lars lbfgs lion
    nadam novograd optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd
    signum sm3 yogi
""".split()
CONTRIB = """
    acprop ademamix simplified_ademamix adopt cocob dadapt_adamw dog galore madgrad momo_adam muon
    prodigy sophia
""".split()
WRAPPED = {
    "accumulated": optax.MultiSteps(optax.adam(1e-2), every_k_schedule=4).gradient_transformation(),
    "guarded": optax.apply_if_finite(optax.adam(1e-2), 3),
    "injected": optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2),
    "masked-part": optax.masked(optax.adam(1e-2), {"body": True, "embedding": False}),
    "masked-other-part": optax.masked(optax.adam(1e-2), {"body": False, "embedding": True}),
    "mechanised": contrib.mechanize(optax.adam(1e-2)),
    "schedule-free": contrib.schedule_free_adamw(1e-2),
    "sharpness-aware": contrib.sam(optax.sgd(1e-2, momentum=0.9), optax.sgd(1e-2)),
}
# those that may have groups, and whose state follows the vocabulary
IN_GROUPS = [
    name
    for name in (*ALIASES, *CONTRIB)
    if name not in ("lbfgs", "simplified_ademamix", "dadapt_adamw", "galore", "muon")
]
NAMES = [*ALIASES, *CONTRIB, *WRAPPED]
# one for each kind of state: moments, per layer, lists, none; counts, flags, random keys
KINDS = frozenset("adam adafactor novograd sm3 prodigy rprop sgd dog sophia".split())


def alike_slow(names: Iterable[str]) -> list:
    """Return these optimizers as parameters; mark as slow those that are none of `KINDS`."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in KINDS)) for name in names]


def is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def is_vector(params):
    return jax.tree.map(lambda leaf: leaf.ndim < 2, params)


def by_size(params):
    return jax.tree.map(lambda leaf: "matrix" if leaf.ndim > 1 else "vector", params)


MOMENTUM, RATE = optax.sgd(0.1, momentum=0.9, nesterov=True), optax.cosine_decay_schedule(1e-2, 50)
CASES = {
    "adamw": optax.adamw(1e-2, weight_decay=0.1),
    "schedule": optax.adam(RATE),
    "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(RATE)),
    "two": optax.chain(optax.scale_by_adam(0.8), optax.scale_by_adam(), optax.scale(-0.01)),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=RATE),
    "lion": optax.lion(1e-3),
    "sgd": optax.sgd(0.1),
    "momentum": MOMENTUM,
    "adafactor": optax.adafactor(1e-2, momentum=0.9),
    "factored": optax.adafactor(1e-2, min_dim_size_to_factor=4, momentum=0.9),
    "sm3": optax.sm3(0.1),  # a leaf's statistics are a list
    "labels": optax.multi_transform({"matrix": optax.adam(1e-2), "vector": MOMENTUM}, by_size),
    "masked": optax.masked(MOMENTUM, is_matrix),
    "masked tables": optax.masked(optax.adam(1e-2), is_vector),
    "accumulated": WRAPPED["accumulated"],
    "schedule-free": WRAPPED["schedule-free"],
}


def cases(names: str) -> dict[str, optax.GradientTransformation]:
    """Return some of the cases, separated by commas."""
    return {name: CASES[name] for name in names.split(", ")}


def make(name: str) -> optax.GradientTransformation:
    """Return the optimizer of this name."""
    if name in WRAPPED:
        return WRAPPED[name]
    of = getattr(optax if name in ALIASES else contrib, name)
    return of(**({} if name == "lbfgs" else {"learning_rate": 1e-2}))
