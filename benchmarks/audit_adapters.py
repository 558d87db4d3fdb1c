"""Judge the audit of adapters by what PEFT does: write adapters, merge them, reload, compare.

    python benchmarks/audit_adapters.py write FOLDER    # with torch, transformers and peft
    python benchmarks/audit_adapters.py judge FOLDER    # the table

The truth is a reload: an adapter is at fault if the merged model, saved and loaded again, does not
have the logits of the model with the adapter.
"""

import collections
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

TOLERANCE = 1e-3  # of logits whose size is about 1
BASES = ("qwen2", "gemma", "gpt2", "opt", "gpt_neox")
# Kind -> options of PEFT's LoraConfig; IN and OUT are replaced by the base model's modules.
KINDS: dict[str, dict[str, Any]] = {
    "attention only": {"target_modules": ["ATTENTION"]},
    "LoRA on both": {"target_modules": ["IN", "OUT"]},
    "LoRA on both, tied": {"target_modules": ["IN", "OUT"], "ensure_weight_tying": True},
    "LoRA on the input": {"target_modules": ["IN"]},
    "LoRA on the output": {"target_modules": ["OUT"]},
    "both saved": {"target_modules": ["ATTENTION"], "modules_to_save": ["IN", "OUT"]},
    "both saved, tied": {
        "target_modules": ["ATTENTION"],
        "modules_to_save": ["IN", "OUT"],
        "ensure_weight_tying": True,
    },
    "input saved": {"target_modules": ["ATTENTION"], "modules_to_save": ["IN"]},
    "tokens": {"target_modules": ["ATTENTION"], "trainable_token_indices": {"IN": [1, 2, 5]}},
}


def write(folder: Path) -> None:
    """Write a tied base, and for each kind an adapter and what merging does."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    import peft
    import torch
    import transformers
    from audit_families import build, logits_of, shrink
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for base in BASES:
        for kind, options in KINDS.items():
            place = folder / base / kind.replace(" ", "-").replace(",", "")
            place.mkdir(parents=True)
            config = CONFIG_MAPPING[base]()
            shrink(config)
            config.tie_word_embeddings = True
            kinds = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            model = build(config, getattr(transformers, kinds[base]))
            model.save_pretrained(place / "base")
            modules = dict(model.named_modules())
            names = {
                "IN": next(n for n, m in modules.items() if m is model.get_input_embeddings()),
                "OUT": next(n for n, m in modules.items() if m is model.get_output_embeddings()),
                "ATTENTION": next(
                    n
                    for n, m in modules.items()
                    if n.endswith(("q_proj", "c_attn", "query_key_value"))
                ),
            }
            names = {key: name.rpartition(".")[2] for key, name in names.items()}
            text = json.dumps(options)
            for key, name in names.items():
                text = text.replace(f'"{key}"', f'"{name}"')
            try:
                adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, **json.loads(text)))
                with torch.no_grad():
                    for _, each in adapted.named_parameters():
                        if each.requires_grad:
                            each.add_(0.3 * torch.randn_like(each))
                truth = logits_of(adapted)
                adapted.save_pretrained(place / "adapter")
                adapted.merge_and_unload().save_pretrained(place / "merged")
                again = type(model).from_pretrained(place / "merged", dtype="float32")
                gap = float(abs(logits_of(again) - truth).max())
                (place / "gap.json").write_text(json.dumps(gap))
            except Exception as error:
                (place / "failed.txt").write_text(f"{type(error).__name__}: {error}")


def judge(folder: Path) -> None:
    """Print the table, and each verdict that is not right."""
    from jaxtie.audit.audit import audit
    from jaxtie.config import UserError

    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for base in BASES:
        for kind in KINDS:
            place = folder / base / kind.replace(" ", "-").replace(",", "")
            if not (place / "gap.json").exists():
                table[kind]["not written"] += 1
                print(f"not written  {base}, {kind}: {(place / 'failed.txt').read_text()[:150]}")
                continue
            gap = json.loads((place / "gap.json").read_text())
            try:
                found = audit(place / "base", adapter=place / "adapter")
                status, text = found.status, found.main.text
            except UserError as error:
                status, text = 2, str(error)
            is_fault = not gap <= TOLERANCE
            word = "right" if status == int(is_fault) else "missed" if is_fault else "false alarm"
            table[kind][word] += 1
            table[kind]["at fault"] += is_fault
            if word != "right":
                print(f"{word:<12} {base}, {kind}, gap {gap:.2g}: {text}")
    columns = ("at fault", "right", "false alarm", "missed", "not written")
    print(f"\n| adapter | {' | '.join(columns)} |\n{'| --- ' * (len(columns) + 1)}|")
    for kind, row in table.items():
        print(f"| {kind} | {' | '.join(str(row[each]) for each in columns)} |")


if __name__ == "__main__":
    {"write": write, "judge": judge}[sys.argv[1]](Path(sys.argv[2]).absolute())
