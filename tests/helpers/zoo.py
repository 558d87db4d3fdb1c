"""The optimizers of Optax that keep something of the parameters, plain and wrapped."""

import optax
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


def make(name: str) -> optax.GradientTransformation:
    """Return the optimizer of this name."""
    if name in WRAPPED:
        return WRAPPED[name]
    of = getattr(optax if name in ALIASES else contrib, name)
    return of(**({} if name == "lbfgs" else {"learning_rate": 1e-2}))
