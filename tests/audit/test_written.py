"""Verdicts on what transformers 4.57.6 and 5.24.0 wrote, without transformers and without values.

`benchmarks/audit_families.py condense` writes the cases: names, shapes, which tensors are equal,
the findings, and the versions that did not reload the logits.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import audit_folder, codes

LINES = Path(__file__).with_name("written.jsonl").read_text().splitlines()
WRITTEN = {case["name"]: case for case in map(json.loads, LINES)}
# At fault and not found: a head that was not written, one that has the size of the encoder's
# vocabulary, a size that only an untied head reads.
MISSED = {f"v5/fsmt--seq2seq/{each}" for each in ("retrained", "resized")}
MISSED |= {"v5/ovis2--image/other-resized"}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_checkpoint_gets_its_verdict(tmp_path, name):
    case = WRITTEN[name]
    tensors = {each: np.zeros(1, np.float32) for each in case["small"]}
    tensors |= {
        each: np.random.default_rng(content).standard_normal(shape, np.float32)
        for each, (shape, content) in case["tensors"].items()
    }
    assert codes(audit_folder(tmp_path, tensors, case["config"])) == set(case["wrong"])
    assert case["wrong"] or not case["at fault in"] or name in MISSED


def test_both_versions_all_variants_and_faults_are_among_them():
    versions, variants = ({name.split("/")[i] for name in WRITTEN} for i in (0, 2))
    assert versions == {"v4", "v5"} and {"plain", "flipped", "retrained", "resized"} < variants
    assert len({name.split("/")[1] for name in WRITTEN}) > 30
    assert sum(bool(case["at fault in"]) for case in WRITTEN.values()) > 50
