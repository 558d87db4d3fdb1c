"""Judge the audit by what transformers does: write families, audit and repair them, reload them.

Run each step in an environment with one version of transformers (4.57 and 5.24 were used); `judge`
and `repair` need none.

    python benchmarks/audit_families.py write FOLDER      # families that can be made small
    python benchmarks/audit_families.py repair FOLDER     # copies by --tie, --untie and --flags
    python benchmarks/audit_families.py reload FOLDER     # logits of all, by this version
    python benchmarks/audit_families.py judge FOLDER      # the table
    python benchmarks/audit_families.py condense FOLDER   # tests/audit/written.jsonl
    python benchmarks/audit_families.py defaults FILE     # which types this version ties by default

The truth is a reload: a checkpoint is at fault if a version that reloads the plain save of its type
to the same logits does not do so for the checkpoint.
"""

import collections
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TOKENS, MORE, WIDTH = 96, 8, 32
MOST_PARAMETERS = 3_000_000
TOLERANCE = 1e-2  # of logits whose size is about 1: no reload moved them by 0.004 to 0.08
EXACT = 1e-3  # within which a version that may judge reads the plain save
PATIENCE = 60  # seconds for one type
TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
}
FLAG = "tie_word_embeddings"
HOWS = ("tie", "untie", "flags")
# Variants whose flag contradicts the tables: an alarm is right, also where transformers 5, unlike
# other loaders, keeps both tables.
CONTRADICTIONS = ("flipped", "retrained")
# Types that `condense` writes: the common ones, and those that once were misjudged.
CONDENSED = """
albert--masked bart--seq2seq bert--masked bloom--causal cpmant--causal deberta-v2--masked
electra--masked falcon--causal fnet--masked fsmt--seq2seq gemma3--causal gpt2--causal
gpt_neox--causal idefics3--image led--seq2seq llama--causal llava--image marian--causal
mbart--seq2seq mega--masked mistral3--image mllama--image moshi--causal mpnet--masked mt5--seq2seq
opt--causal open-llama--causal ovis2--image pegasus--seq2seq phi--causal qwen2--causal
qwen3_vl_moe--image rembert--masked roberta--masked seamless_m4t--seq2seq t5--seq2seq
umt5--seq2seq
""".split()
# A part of the name of a size -> its small value; the first that matches counts.
SMALL = {
    r"vocab_size(_or_config.*)?$|^n_vocab$": TOKENS,
    r"vocab_size_per|image_size|patch_size|image_token|_id$|_index$|token": None,
    r"^mamba_(d_head|head_dim|headdim)": 16,
    r"^top_k$|qk_head_dim": None,
    r"num_(key_value_heads|kv_heads|query_groups)|n_kv_head": 2,
    r"(^|_)n?_?(num_)?(attention_)?heads?$|n_head|num_attention_heads|attention_heads": 4,
    r"head_dim|head_size|qk_|v_head|kv_channels|d_kv|rotary_dim": 8,
    r"lora_rank|time_step_rank|d_?state|state_size|ssm_state": 8,
    r"moe_intermediate|expert_(ffn|dim|hidden)|intermediate|ffn|d_ff|inner|feedforward|mlp_dim": 64,
    r"experts_per|num_selected|moe_(top_?)?k$": 2,
    r"n_group|topk_group": 1,
    r"experts": 4,
    r"layers?$|n_layer|num_blocks|depth": 2,
    r"max_position|n_positions|n_ctx|max_seq": 128,
    r"hidden|d_model|n_embd|embed(ding)?_(dim|size)|emb_dim|word_embed|^dim$|model_dim|width|"
    r"dim_model|projection_dim|input_size|output_size|lru_width|attention_dim": WIDTH,
}


def small_value(key: str, value: Any) -> int | None:
    """Return a small value for a size in a configuration; None to leave it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        return None
    if key.endswith("_id"):
        return 3 if value >= TOKENS else None
    small = next((new for part, new in SMALL.items() if re.search(part, key)), None)
    return small if small and value > small else None


def shrink(config: Any, depth: int = 0) -> None:
    """Set the sizes in a configuration, at all levels, to small ones."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "model_type") and depth < 3:
            shrink(value, depth + 1)
        elif small := small_value(key, value):
            setattr(config, key, small)
    for key, value in list(vars(config).items()):
        if key in ("n_group", "topk_group") and value is None:
            setattr(config, key, 1)
        if key.startswith("layer") and isinstance(value, list):
            setattr(config, key, value[: getattr(config, "num_hidden_layers", 2)])
    mend(config)


def mend(config: Any) -> None:
    """Make the values fit that depend on sizes."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if hasattr(config, "qk_nope_head_dim"):
        special["qk_head_dim"] = config.qk_nope_head_dim + config.qk_rope_head_dim
    if getattr(config, "model_type", "") == "mamba2":
        special["head_dim"] = 16
    for key in special.keys() & vars(config).keys():
        if getattr(config, key) is not None:
            setattr(config, key, special[key])


def set_flag(config: Any, tied: bool) -> None:
    """Set the flag of a configuration at the levels that describe its language model."""
    config.tie_word_embeddings = tied
    for name in ("text_config", "decoder"):
        if hasattr(getattr(config, name, None), FLAG):
            setattr(getattr(config, name), FLAG, tied)


def logits_of(model: Any) -> np.ndarray:
    """Return the logits of one short text."""
    import torch

    tokens = torch.arange(4, 14)[None]
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens.flip(1)
    model.eval()
    with torch.no_grad():
        try:
            output = model(**inputs)
        except TypeError:
            output = model(tokens)
    found = output.logits if hasattr(output, "logits") else output.prediction_logits
    if not torch.isfinite(found).all() or found.shape[-1] < TOKENS:
        raise ValueError(f"logits of shape {tuple(found.shape)}, or not finite")
    return found.float().numpy()


def build(config: Any, kind: Any) -> Any:
    """Build a model whose values are all random, also those that begin as zeros."""
    import torch

    try:
        with torch.device("meta"):
            size = sum(each.numel() for each in kind(config).parameters())
    except (NotImplementedError, RuntimeError):  # it computes with values while it is built
        size = 0
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():
        for name, each in [*model.named_parameters(), *model.named_buffers()]:
            if each.is_floating_point() and (
                isinstance(each, torch.nn.Parameter) or "final_logits_bias" in name
            ):
                each.add_(0.1 * torch.randn_like(each))
    return model


def tables_of(model: Any) -> tuple[Any, Any]:
    head = model.get_output_embeddings()
    return model.get_input_embeddings().weight, None if head is None else head.weight


def save(model: Any, path: Path, is_sharded: bool = False) -> None:
    """Save a model and the logits that it has."""
    import torch

    if is_sharded:
        model.bfloat16()
        model.save_pretrained(path, max_shard_size="40KB")
        model.float()
    else:
        model.save_pretrained(path)
    np.save(path.with_suffix(".npy"), logits_of(model))
    del torch


def variants(make: Any, path: Path) -> None:
    """Write the variants of one class."""
    import torch

    plain = make(None)
    logits = logits_of(plain)
    torch.manual_seed(7)
    if np.abs(logits_of(plain) - logits).max() > 0:
        raise ValueError("logits are random")
    table, head = tables_of(plain)
    is_tied = head is not None and head is table
    path.mkdir(parents=True)
    (path / "class.json").write_text(json.dumps([type(plain).__name__, is_tied]))
    save(plain, path / "plain")
    edit_config(path, "flipped", lambda level: level.__setitem__(FLAG, not is_tied))
    edit_config(path, "no-flag", lambda level: level.pop(FLAG, None))
    if "text_config" in json.loads((path / "plain/config.json").read_text()):
        edit_config(path, "nested", lambda level: "text_config" in level and level.pop(FLAG, None))
    for name, tied, change in (
        ("other", not is_tied, None),
        ("retrained", True, retrain),
        ("resized", is_tied, resize),
        ("other-resized", not is_tied, resize),
    ):
        try:
            model = make(tied)
            table, head = tables_of(model)
            if (head is not None and head is table) is not tied:
                continue  # this class cannot be had this way
            if change:
                change(model)
            save(model, path / name, change is resize)
        except Exception as error:
            shutil.rmtree(path / name, ignore_errors=True)
            (path / f"{name}.txt").write_text(f"{type(error).__name__}: {error}"[:300])


def edit_config(path: Path, name: str, edit: Any) -> None:
    """Copy the plain save with another configuration."""
    shutil.copytree(path / "plain", path / name)
    shutil.copy(path / "plain.npy", path / f"{name}.npy")
    file = path / name / "config.json"
    content = json.loads(file.read_text())
    levels = [content, *(content[key] for key in ("text_config", "decoder") if key in content)]
    for level in levels:
        if level is content or FLAG in level:
            edit(level)
    file.write_text(json.dumps(content))


def retrain(model: Any) -> None:
    """Train the head of a tied model apart."""
    import torch

    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach() + 0.2 * torch.randn_like(head.weight))


def resize(model: Any) -> None:
    model.resize_token_embeddings(TOKENS + MORE, mean_resizing=False)


def quiet() -> Any:
    """Import transformers and return it, offline and silent."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    return transformers


def classes() -> Iterator[tuple[str, str, str]]:
    """Yield type, task and class of every model with logits over tokens."""
    from transformers.models.auto import modeling_auto

    seen = set()
    for task, mapping in TASKS.items():
        for kind, names in getattr(modeling_auto, mapping).items():
            name = names if isinstance(names, str) else names[0]
            if (kind, name) not in seen:
                seen.add((kind, name))
                yield kind, task, name


def alarm(*_: Any) -> None:
    raise TimeoutError(f"more than {PATIENCE} s")


def write(folder: Path) -> None:
    transformers = quiet()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    signal.signal(signal.SIGALRM, alarm)
    folder = folder / f"v{transformers.__version__.partition('.')[0]}"
    folder.mkdir(parents=True, exist_ok=True)
    for kind, task, name in classes():
        path = folder / f"{kind}--{task}"
        if path.exists() or path.with_suffix(".failed").exists():
            continue
        signal.alarm(PATIENCE)
        try:
            model = getattr(transformers, name)

            def make(tied: bool | None, kind: str = kind, model: Any = model) -> Any:
                config = CONFIG_MAPPING[kind]()
                shrink(config)
                if tied is not None:
                    set_flag(config, tied)
                return build(config, model)

            variants(make, path)
        except Exception as error:
            shutil.rmtree(path, ignore_errors=True)
            path.with_name(f"{path.name}.failed").write_text(f"{type(error).__name__}: {error}")
        finally:
            signal.alarm(0)


def checkpoints(folder: Path) -> Iterator[Path]:
    return (one.parent for one in sorted(folder.glob("v*/*/*/config.json")))


def turn(path: Path, version: str) -> tuple[int, str]:
    """Return the turn of a checkpoint: own ones first, then copies, types in a mixed order.

    So a run that is stopped has seen all variants of a fair sample of the types.
    """
    is_own, is_copy = path.parts[-3] == f"v{version}", "+" in path.name
    mixed = hashlib.sha256(path.parent.name.encode()).hexdigest()
    rank = 2 * is_copy if is_own else 3 - 2 * (path.name in ("plain", "other"))
    return rank, mixed


def reload(folder: Path) -> None:
    transformers = quiet()
    version = transformers.__version__.partition(".")[0]
    signal.signal(signal.SIGALRM, alarm)
    order = sorted(checkpoints(folder), key=lambda path: turn(path, version))
    for path in order:
        base = path.with_name(f"{path.name}.in{version}")
        if base.with_suffix(f"{base.suffix}.npy").exists() or base.exists():
            continue
        name = json.loads((path.parent / "class.json").read_text())[0]
        signal.alarm(PATIENCE)
        try:
            kind = getattr(transformers, name)
            model = kind.from_pretrained(path, dtype="float32")
            np.save(f"{base}.npy", logits_of(model))
        except Exception as error:
            base.write_text(f"{type(error).__name__}: {error}"[:500])
        finally:
            signal.alarm(0)


def repair(folder: Path) -> None:
    from jaxtie.audit.knowledge import NAMES
    from jaxtie.audit.repair import write_repaired
    from jaxtie.config import UserError

    # Also heads with a transform or a bias, to learn which may be repaired.
    NAMES["kinds"]["reloaded"] = sorted(
        {path.parts[-2].partition("--")[0] for path in checkpoints(folder)}
    )
    for path in sorted(checkpoints(folder), key=lambda path: turn(path, "")):
        for how in HOWS if "+" not in path.name and "resized" not in path.name else ():
            new = path.with_name(f"{path.name}+{how}")
            if new.exists() or new.with_name(f"{new.name}.txt").exists():
                continue
            try:
                write_repaired(path, new, how)
            except UserError as error:
                new.with_name(f"{new.name}.txt").write_text(str(error))


def read(path: Path) -> np.ndarray | None:
    return np.load(path) if path.exists() else None


def is_same(
    first: np.ndarray | None, second: np.ndarray | None, tolerance: float = TOLERANCE
) -> bool:
    if first is None or second is None or first.shape != second.shape:
        return False
    return float(np.abs(first - second).max()) <= tolerance


def reloads(path: Path, name: str) -> dict[str, np.ndarray | None]:
    """Return the logits by version of a loader that was tried."""
    found = {}
    for version in ("4", "5"):
        base = path / f"{name}.in{version}"
        if base.exists() or Path(f"{base}.npy").exists():
            found[version] = read(Path(f"{base}.npy"))
    return found


def is_offered(path: Path) -> bool:
    """Return whether the audit offers repairs of a model of this kind."""
    from jaxtie.audit.audit import audit
    from jaxtie.audit.knowledge import NAMES, is_transform

    found = audit(path)
    has_more = any(map(is_transform, found.checkpoint.tensors)) or found.embeddings.biases
    kind, kinds = found.checkpoint.configuration.model_type, NAMES["kinds"]
    return kind not in kinds["changed"] and (not has_more or kind in kinds["reloaded"])


class Place:
    """All variants of one class by one writer."""

    def __init__(self, path: Path):
        """Read the logits of the plain save in each version."""
        self.path, self.own = path, path.parent.name[1:]
        truth = read(path / "plain.npy")
        plain = reloads(path, "plain")
        # A version that does not read the plain save to the same logits is no judge of the others.
        self.judges = {each for each, found in plain.items() if is_same(found, truth, EXACT)}
        self.is_broken = self.own in plain and self.own not in self.judges

    def found(self, name: str) -> dict[str, np.ndarray | None]:
        """Return the logits of a variant by version that may judge it."""
        return {each: one for each, one in reloads(self.path, name).items() if each in self.judges}

    def faults(self, name: str) -> list[str]:
        """Return the versions that read other logits than the variant had when it was saved."""
        truth = read(self.path / f"{name}.npy")
        return [v for v, one in self.found(name).items() if not is_same(one, truth)]

    def differs(self, name: str) -> bool:
        """Return whether the flags of a variant say tied and its tables differ."""
        from jaxtie.audit.audit import audit

        return audit(self.path / name).findings[0].code == "tied-but-different"

    def judge_copy(self, copy: str) -> str:
        """Return whether a repaired copy has the logits of its source, saved or reloaded."""
        name = copy.partition("+")[0]
        allowed = [read(self.path / f"{name}.npy"), *reloads(self.path, name).values()]
        changed = any(
            not any(is_same(one, right) for right in allowed) for one in self.found(copy).values()
        )
        if changed and copy.endswith("+tie") and self.differs(name):
            return "repair lossy"  # asked for, and said in its report
        offer = "" if is_offered(self.path / copy) else ", not offered"
        return f"repair {'changed' if changed else 'same'}{offer}"

    def judge(self, name: str) -> tuple[str, str]:
        """Return a word for the verdict on a variant, and the verdict."""
        from jaxtie.audit.audit import audit
        from jaxtie.config import UserError

        try:
            result = audit(self.path / name)
        except UserError as error:
            return "unreadable", str(error)
        text = result.main.text
        if faults := self.faults(name):
            return "right" if result.status else "missed", f"at fault in {faults}: {text}"
        # A version that reads the plain save otherwise is a witness for an alarm, not against it.
        truth, others = read(self.path / f"{name}.npy"), []
        for version, one in reloads(self.path, name).items():
            # A failure that is not about shapes, as of a class that a version lacks, says nothing.
            error = self.path / f"{name}.in{version}"
            if one is not None or "mismatch" in error.read_text():
                others += [version] * (not is_same(one, truth))
        is_right = not result.status or name in CONTRADICTIONS or bool(others)
        return "right" if is_right else "false alarm", text


def judge(folder: Path) -> None:
    """Print each verdict that is not right, and the table."""
    table: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    types: dict[str, set[str]] = collections.defaultdict(set)
    broken = []
    for path in sorted(folder.glob("v*/*/")):
        place = Place(path)
        if place.is_broken:
            broken.append(f"{path.parent.name}/{path.name}")
        for name in sorted(one.parent.name for one in path.glob("*/config.json")):
            if not place.judges or place.judges - place.found(name).keys():
                continue  # not reloaded
            types[path.parent.name].add(path.name.partition("--")[0])
            if "+" in name:
                word, text = place.judge_copy(name), ""
            else:
                word, text = place.judge(name)
                table[path.parent.name, name]["judged"] += 1
            table[path.parent.name, name.partition("+")[0]][word] += 1
            if word not in ("right", "repair same"):
                print(f"{word:<15} {path.parent.name}/{path.name}/{name}: {text}")
    columns = "judged", "right", "false alarm", "missed", "unreadable", "repair same"
    columns += ("repair lossy",)
    columns += ("repair changed", "repair same, not offered", "repair changed, not offered")
    print(f"\n| written by | variant | {' | '.join(columns)} |\n{'| --- ' * (len(columns) + 2)}|")
    for (version, name), row in sorted(table.items()):
        print(f"| {version} | {name} | {' | '.join(str(row[each]) for each in columns)} |")
    print(f"\nnot judged, since the writer reads other logits from its plain save: {broken}")
    print("types:", {version: len(names) for version, names in types.items()})


def condense(folder: Path) -> None:
    """Write the judged facts of some types, without values, for a test without transformers."""
    lines = []
    for path in sorted(folder.glob("v*/*/")):
        place = Place(path)
        for name in sorted(one.parent.name for one in path.glob("*/config.json")):
            is_judged = place.judges and not place.judges - place.found(name).keys()
            if path.name in CONDENSED and "+" not in name and is_judged:
                lines.append(json.dumps(condensed(place, name), separators=(",", ":")))
    file = Path(__file__).parents[1] / "tests/audit/written.jsonl"
    file.write_text("\n".join(lines) + "\n")


def condensed(place: Place, name: str) -> dict[str, Any]:
    """Return configuration, names, shapes and equalities of tensors, findings and faults."""
    from jaxtie.audit.audit import audit

    found = audit(place.path / name)
    contents: dict[bytes, int] = {}
    tensors, small = {}, []
    for one in found.checkpoint.tensors.values():
        if max(one.shape, default=0) >= TOKENS and len(one.shape) < 3:
            content = contents.setdefault(one.read(...).tobytes(), len(contents))
            tensors[one.name] = [list(one.shape), content]
        elif one.name.count(".") < 4 and one.name.endswith("weight"):
            small.append(one.name)
    return {
        "name": f"{place.path.parent.name}/{place.path.name}/{name}",
        "config": small_config(json.loads((place.path / name / "config.json").read_text())),
        "tensors": tensors,
        "small": small,
        "wrong": sorted({one.code for one in found.findings if one.level == "wrong"}),
        "at fault in": place.faults(name),
    }


def small_config(level: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration on tying, model types and vocabulary sizes."""
    kept = {key: one for key, one in level.items() if re.search(r"tie_|vocab|share|scale_d", key)}
    kept |= {key: level[key] for key in ("model_type", "architectures") if key in level}
    inner = {key: small_config(one) for key, one in level.items() if isinstance(one, dict)}
    return kept | {key: one for key, one in inner.items() if one}


def defaults(file: Path) -> None:
    """Write which types are tied if config.json has no flag: of each, a model without data."""
    transformers = quiet()
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found: dict[str, bool] = {}
    failed = {}
    signal.signal(signal.SIGALRM, alarm)
    for kind, _, name in classes():
        signal.alarm(PATIENCE)
        try:
            config = CONFIG_MAPPING[kind]()
            shrink(config)
            with torch.device("meta"):
                model = getattr(transformers, name)(config)
                model.tie_weights()
            table, head = tables_of(model)
            if head is not None:
                found[kind] = found.get(kind, False) or head is table
        except Exception as error:
            failed[kind] = f"{type(error).__name__}: {error}"[:200]
        finally:
            signal.alarm(0)
    file.write_text(
        json.dumps({"version": transformers.__version__, "tied": found, "failed": failed})
    )
    print(
        f"{len(found)} types, {sum(found.values())} tied; {len(failed)} not built: {list(failed)}"
    )


if __name__ == "__main__":
    {f.__name__: f for f in (write, repair, reload, judge, condense, defaults)}[sys.argv[1]](
        Path(sys.argv[2]).absolute()
    )
