"""Files as people export them: each is read, or refused in one line."""

import json
import math
import re

import pytest

import jaxtie
from jaxtie.compare import decide
from jaxtie.config import UserError


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """The plan of further seeds is not what these tests are about."""
    monkeypatch.setattr(decide, "DRAWS", 10)


# Final losses of three seeds: tied is 0.02 above untied in each, which makes the interval narrow.
TIED, UNTIED = ("3.320", "3.331", "3.345"), ("3.300", "3.311", "3.325")


def long(losses, steps=(0, 500, 1000), head="seed,step,val_loss", mark=",", end="\n"):
    """A row per seed and step; before the last step losses are higher."""
    rows = [head]
    for seed, loss in enumerate(losses):
        rows += [f"{seed},{step},{float(loss) + (steps[-1] - step) / 200:.3f}" for step in steps]
    return end.join(row.replace(",", mark) for row in rows) + end


def wide(losses, head="step,0,1,2", steps=(500, 1000), mark=","):
    rows = [
        mark.join([str(step), *(f"{float(x) + (steps[-1] - step):.3f}" for x in losses)])
        for step in steps
    ]
    return "\n".join([head.replace(",", mark), *rows]) + "\n"


def wandb(losses, names="seed-{}", metric="val_loss"):
    heads, columns = ["Step"], []
    for seed, loss in enumerate(losses):
        heads += [f"{names.format(seed)} - {metric}{end}" for end in ("", "__MIN", "__MAX")]
        columns += [loss, "0.1", "9.9"]
    head = ",".join(f'"{name}"' for name in heads)
    return "\n".join(
        [head, *(f"{t}," + ",".join(c if t == 1000 else "7.5" for c in columns) for t in (0, 1000))]
    )


def state(loss, step=1000):
    history = [
        {"step": step, "epoch": 1.5, "loss": 9.9},
        {"step": step, "epoch": 1.5, "eval_loss": float(loss)},
    ]
    return json.dumps({"global_step": step, "log_history": history})


def lines(losses, key="loss", **more):
    return "".join(
        json.dumps({"seed": s, "step": 1000, key: float(x)} | more) + "\n"
        for s, x in enumerate(losses)
    )


def both(make, **more):
    return {"tied.csv": make(TIED, **more), "untied.csv": make(UNTIED, **more)}


def each(text, name="{}.csv"):
    """One file per seed."""
    arms = {"tied": TIED, "untied": UNTIED}
    return {
        name.format(arm, seed): text(loss)
        for arm, losses in arms.items()
        for seed, loss in enumerate(losses)
    }


def table(*rows):
    return "\n".join(rows) + "\n"


PLAIN, GAP = ("tied.csv", "untied.csv"), {"gap": 0.02, "seeds": (3, 3), "paired": 3}
AT = GAP | {"at": 1000}
PATTERNS = ("tied*", "untied*")

READ = {
    "long": (both(long), PLAIN, AT),
    "long, the newest first": (both(long, steps=(1000, 500, 0)[::-1]), PLAIN, AT),
    "semicolon": (both(long, mark=";"), PLAIN, AT),
    "tab": (both(long, mark="\t"), PLAIN, AT),
    "spaces": (both(long, mark=" "), PLAIN, AT),
    "CRLF": (both(long, end="\r\n"), PLAIN, AT),
    "BOM": ({name: "\ufeff" + text for name, text in both(long).items()}, PLAIN, AT),
    "Latin-1": (
        {
            "tied.csv": long(TIED, head="seed,step,val_loss")
            .replace("\n0", ",naïve\n0", 1)
            .replace("val_loss,naïve", "val_loss")
            .encode("latin-1"),
            "untied.csv": ("# Läufe ohne Bindung\n" + long(UNTIED)).encode("latin-1"),
        },
        PLAIN,
        AT,
    ),
    "decimal commas": (
        {n: t.replace(",", ";").replace(".", ",") for n, t in both(long).items()},
        PLAIN,
        AT,
    ),
    "decimal commas, tab": (
        {n: t.replace(",", "\t").replace(".", ",") for n, t in both(long).items()},
        PLAIN,
        AT,
    ),
    "comments and blank lines": (
        {n: "# run of May\n\n" + t.replace("\n1", "\n\n1") for n, t in both(long).items()},
        PLAIN,
        AT,
    ),
    "a comma at the end of each row": (
        {n: t.replace("\n", ",\n") for n, t in both(long).items()},
        PLAIN,
        AT,
    ),
    "quoted": ({n: re.sub(r"([^,\n]+)", r'"\1"', t) for n, t in both(long).items()}, PLAIN, AT),
    "wide": (both(wide), PLAIN, AT),
    "wide, names of seeds": (both(wide, head="Step,seed 0,seed_1,seed-2"), PLAIN, AT),
    "wide, loss and seed in a name": (
        both(wide, head="step,val_loss_seed0,val_loss_seed1,val_loss_seed2"),
        PLAIN,
        AT,
    ),
    "W&B": (both(wandb), PLAIN, AT),
    "W&B, / in the name": (both(wandb, metric="eval/loss"), PLAIN, AT),
    "W&B, random names": (both(wandb, names="{}-golden-{}-sun".format("{}", "x")), PLAIN, AT),
    "W&B, both arms in one file": (
        {
            "all.csv": table(
                '"Step","tied-s0 - loss","tied-s1 - loss","untied-s0 - loss","untied-s1 - loss"',
                "10,3.32,3.33,3.30,3.31",
            )
        },
        ("all.csv:tied*", "all.csv:untied*"),
        {"gap": 0.02, "at": 10, "seeds": (2, 2), "paired": 2},
    ),
    "W&B, a run that ends early is blank": (
        {
            "tied.csv": table(
                '"Step","s0 - loss","s1 - loss"', "10,3.32,3.33", "20,3.2,", "30,3.1,"
            ),
            "untied.csv": table('"Step","s0 - loss","s1 - loss"', "10,3.30,3.31", "20,3.1,3.1"),
        },
        PLAIN,
        {"gap": 0.02, "at": 10, "seeds": (2, 2), "said": "untied ends at 20: compared at 10"},
    ),
    "TensorBoard": (
        each(
            lambda x: f"Wall time,Step,Value\n1700000000.1,0,9.9\n1700000100.2,1000,{x}\n",
            "{}_seed{}.csv",
        ),
        PATTERNS,
        AT,
    ),
    "trainer_state.json": (
        {n: t for n, t in each(state, "{}/seed{}/trainer_state.json").items()},
        ("tied", "untied"),
        AT | {"column": "eval_loss"},
    ),
    "trainer_state.json of checkpoints": (
        each(state, "{}/seed{}/trainer_state.json")
        | each(lambda x: state(x, 500), "{}/seed{}/checkpoint-500/trainer_state.json")
        | {"tied/seed0/config.json": '{"vocab_size": 9}'},
        ("tied", "untied"),
        AT,
    ),
    "JSON lines": (both(lines), PLAIN, AT),
    "JSON lines, nested": (
        {
            n: "".join(
                json.dumps({"config": {"seed": s}, "step": 9, "eval": {"loss": float(x)}}) + "\n"
                for s, x in enumerate(own)
            )
            for n, own in (("tied.csv", TIED), ("untied.csv", UNTIED))
        },
        PLAIN,
        GAP | {"at": 9},
    ),
    "a list of objects": (
        {n: json.dumps([json.loads(x) for x in t.splitlines()]) for n, t in both(lines).items()},
        PLAIN,
        AT,
    ),
    "final losses by seed": (
        {
            f"{a}.csv": table("seed,loss", *(f"{s},{x}" for s, x in enumerate(own)))
            for a, own in (("tied", TIED), ("untied", UNTIED))
        },
        PLAIN,
        GAP | {"axis": "", "said": "No steps"},
    ),
    "final losses, a row": (
        {
            "tied.csv": table("0,1,2", ",".join(TIED)),
            "untied.csv": table("0,1,2", ",".join(UNTIED)),
        },
        PLAIN,
        GAP | {"axis": ""},
    ),
    "a bare list": (
        {"tied.csv": table(*TIED), "untied.csv": table(*UNTIED)},
        PLAIN,
        GAP | {"axis": "", "paired": 0},
    ),
    "bare lists of one name in two folders are not paired": (
        {"a/x.txt": table(*TIED), "b/x.txt": table(*UNTIED)},
        ("a/x.txt", "b/x.txt"),
        GAP | {"paired": 0},
    ),
    "validation before training": (
        {
            f"{a}.csv": table(
                "seed,step,train_loss,val_loss", *(f"{s},10,2.{s},{x}" for s, x in enumerate(own))
            )
            for a, own in (("tied", TIED), ("untied", UNTIED))
        },
        PLAIN,
        GAP | {"at": 10, "column": "val_loss"},
    ),
    "nats before bits per byte": (
        {
            f"{a}.csv": table(
                "seed,val_loss,val_bpb", *(f"{s},{x},1.{s}" for s, x in enumerate(own))
            )
            for a, own in (("tied", TIED), ("untied", UNTIED))
        },
        PLAIN,
        GAP | {"unit": "nat"},
    ),
    "bits per byte": (
        both(long, head="seed,step,val_bpb"),
        PLAIN,
        AT | {"unit": "bit per byte", "said": "bit per byte"},
    ),
    "perplexity": (
        {
            f"{a}.csv": table(
                "seed,step,perplexity",
                *(f"{s},10,{math.exp(float(x)):.6f}" for s, x in enumerate(own)),
            )
            for a, own in (("tied", TIED), ("untied", UNTIED))
        },
        PLAIN,
        GAP | {"unit": "nat", "said": "converted to nats by ln"},
    ),
    "Lightning": (
        {
            f"{a}.csv": table(
                "epoch,lr,step,train_loss,val_loss,seed",
                *(f"0,,99,,{x},{s}\n,3e-4,109,,,{s}\n0,,109,2.5,,{s}" for s, x in enumerate(own)),
            )
            for a, own in (("tied", TIED), ("untied", UNTIED))
        },
        PLAIN,
        GAP | {"at": 99, "column": "val_loss"},
    ),
    "epochs": (
        both(long, head="seed,epoch,valid_loss", steps=(1, 2)),
        PLAIN,
        GAP | {"axis": "epoch", "at": 2},
    ),
    "tokens": (both(long, head="seed,tokens_seen,loss"), PLAIN, AT | {"axis": "tokens"}),
    "every 100 and every 250 steps": (
        {
            "tied.csv": long(TIED, steps=range(0, 1001, 100)),
            "untied.csv": long(UNTIED, steps=range(0, 1001, 250)),
        },
        PLAIN,
        AT,
    ),
    "rows in any order": (
        {
            n: "\n".join(
                [t.splitlines()[0], *sorted(t.splitlines()[1:], key=lambda row: row[::-1])]
            )
            for n, t in both(long).items()
        },
        PLAIN,
        AT,
    ),
    "a resumed run": (
        {
            "tied.csv": long(TIED, steps=(0, 500, 1000)) + "0,500,9.0\n0,1000,3.420\n",
            "untied.csv": long(UNTIED),
        },
        PLAIN,
        {"gap": 0.02 + 0.1 / 3, "said": "the last loss counts"},
    ),
    "the same rows twice": (
        {n: t + "\n".join(t.splitlines()[1:]) for n, t in both(long).items()},
        PLAIN,
        AT,
    ),
    "files of seeds": (
        each(lambda x: f"step,loss\n5,4\n10,{x}\n", "{}_{}.csv"),
        PATTERNS,
        GAP | {"at": 10},
    ),
    "files of seeds 10 to 12": (
        {
            n.replace("_", "_1"): t
            for n, t in each(lambda x: f"step,loss\n10,{x}\n", "{}_{}.csv").items()
        },
        PATTERNS,
        GAP | {"paired": 3},
    ),
    "nested folders": (
        each(lambda x: f"step,loss\n10,{x}\n", "runs/{}/seed_{}/log.csv"),
        ("runs/tied", "runs/untied"),
        GAP,
    ),
    "hidden files": (
        each(lambda x: f"step,loss\n10,{x}\n", "{}/s{}.csv")
        | {"tied/.s9.csv": "x", "tied/.git/a.csv": "x"},
        ("tied", "untied"),
        GAP,
    ),
    "rows of two splits": (
        {
            f"{a}.csv": table(
                "seed,step,split,loss",
                *(f"{s},9,val,{x}\n{s},9,train,2.0\n{s},7,train,2.1" for s, x in enumerate(own)),
            )
            for a, own in (("tied", TIED), ("untied", UNTIED))
        },
        PLAIN,
        GAP | {"at": 9},
    ),
    "the step of the logger and that of the training": (
        {
            f"{a}.csv": table(
                "Step,seed,trainer/global_step,loss",
                *(f"{s + k},{s},500,{x}" for s, x in enumerate(own)),
            )
            for k, (a, own) in enumerate((("tied", TIED), ("untied", UNTIED)))
        },
        PLAIN,
        GAP | {"at": 500},
    ),
    "an arm column": (
        {
            "all.csv": table(
                "arm,seed,step,loss",
                *(
                    f"{a},{s},9,{x}"
                    for a, own in (("tied", TIED), ("untied", UNTIED))
                    for s, x in enumerate(own)
                ),
            )
        },
        ("all.csv:tied", "all.csv:untied"),
        GAP | {"at": 9},
    ),
    "a seed that diverged": (
        {"tied.csv": long(TIED).replace("3.345", "nan"), "untied.csv": long(UNTIED)},
        PLAIN,
        {"seeds": (2, 3), "paired": 0, "said": "1 of 3 seeds of tied diverged"},
    ),
    "infinity": (
        {"tied.csv": long(TIED).replace("3.345", "Infinity"), "untied.csv": long(UNTIED)},
        PLAIN,
        {"seeds": (2, 3), "said": "conditional"},
    ),
    "a blank end": (
        {"tied.csv": long(TIED).replace("3.345", ""), "untied.csv": long(UNTIED)},
        PLAIN,
        {"seeds": (3, 3), "at": 500, "said": "compared at 500"},
    ),
    "final losses, one blank": (
        {
            "tied.csv": "seed,loss\n0,3.32\n1,3.331\n2,\n",
            "untied.csv": "seed,loss\n0,3.3\n1,3.311\n",
        },
        PLAIN,
        {"seeds": (2, 2), "said": "1 of 3 seeds of tied diverged or have no loss at the end (2)"},
    ),
    "a run without the loss": (
        {
            "tied.csv": table('"Step","s0 - loss","s1 - loss"', "10,3.32,", "20,3.31,"),
            "untied.csv": table('"Step","s0 - loss","s1 - loss"', "10,3.30,3.31", "20,3.2,3.29"),
        },
        PLAIN,
        {"seeds": (1, 2), "at": 20, "said": "1 of 2 seeds of tied diverged or have no loss"},
    ),
    "columns of two names in an arm": (
        {
            "tied0.csv": "seed,step,val_loss\n0,9,3.32\n",
            "tied1.csv": "seed,step,eval_loss\n1,9,3.33\n",
            "untied.csv": "seed,step,val_loss\n0,9,3.3\n1,9,3.31\n",
        },
        ("tied*.csv", "untied.csv"),
        {"gap": 0.02, "said": "tied*.csv has val_loss and eval_loss: check that they are alike"},
    ),
    "NaN in JSON lines": (
        {"tied.csv": lines((*TIED[:2], "nan")), "untied.csv": lines(UNTIED)},
        PLAIN,
        {"seeds": (2, 3), "said": "conditional"},
    ),
    "one row each": (
        {"tied.csv": "step,loss\n10,3.32\n", "untied.csv": "step,loss\n10,3.30\n"},
        PLAIN,
        {"gap": 0.02, "seeds": (1, 1), "said": "no interval: one seed each"},
    ),
    "other seeds in each arm": (
        {
            "tied.csv": long(TIED),
            "untied.csv": long(UNTIED).replace("\n1,", "\n7,").replace("\n2,", "\n8,"),
        },
        PLAIN,
        {"seeds": (3, 3), "paired": 0, "said": "so few in both, 0, show no correlation"},
    ),
    "column chosen": (
        {
            f"{a}.csv": table(
                "seed,step,c4/loss,wiki/loss", *(f"{s},10,2.{s},{x}" for s, x in enumerate(own))
            )
            for a, own in (("tied", TIED), ("untied", UNTIED))
        },
        (*PLAIN, "wiki/loss"),
        GAP | {"column": "wiki/loss"},
    ),
}

GOOD = long(UNTIED)
REFUSED = {
    "empty": ("", r"tied\.csv: is empty; expected columns"),
    "only spaces": (" \n ", r"tied\.csv: is empty; expected columns"),
    "header only": ("seed,step,val_loss\n", r"header only; expected columns"),
    "no header": ("0,10,3.1\n1,10,3.2\n", r"has no header; expected columns"),
    "binary": (b"\x89PNG\x00\x01\xff", r"or no text"),
    "no loss": ("step,lr\n1,2\n", r"no loss among its columns \(lr\).*or --column"),
    "rows of two splits, none of validation": (
        "seed,step,split,loss\n0,9,a,3\n0,9,b,3\n",
        r"split has a, b; keep the rows of one",
    ),
    "several losses": (
        "seed,step,wiki_loss,c4_loss\n0,9,3,3\n",
        r"c4_loss, wiki_loss; choose one by --column",
    ),
    "text": (
        "seed,step,val_loss\n0,9,3.1\n1,9,about 3\n",
        r"line 3, val_loss: 'about 3' is no number; correct",
    ),
    "boolean": ("seed,step,val_loss\n0,9,True\n", r"line 2, val_loss: 'True' is no number"),
    "too large to be read": ("seed,step,val_loss\n0,9,1e999\n", r"line 2, val_loss: '1e999' is no"),
    "boolean in JSON": ('{"step": 9, "loss": true}', r"line 1, loss: 'True' is no number"),
    "negative": (
        "seed,step,val_loss\n0,9,3.1\n1,9,-3.2\n",
        r"line 3, val_loss: '-3\.2' is impossible, expected at least 0; correct",
    ),
    "perplexity below 1": (
        "seed,step,ppl\n0,9,0.5\n",
        r"line 2, ppl: '0\.5' is impossible, expected at least 1",
    ),
    "too large": (
        "seed,step,val_loss\n0,1000,3312\n",
        r"loss 3312 of seed 0 is above 30.*leave out the seed",
    ),
    "tokens against steps": (
        "seed,tokens,val_loss\n0,1000,3.1\n",
        r"has tokens and untied.csv has step: cannot be matched; give both",
    ),
    "no steps against steps": (
        "seed,val_loss\n0,3.1\n",
        r"has no steps and untied.csv has step: cannot be matched; give both",
    ),
    "no common step": (
        "seed,step,val_loss\n0,333,3.1\n",
        r"no step after 0 at which all seeds of both have a loss .tied.csv to 333, .*; log both",
    ),
    "only step 0 in common": (
        "seed,step,val_loss\n0,0,9\n0,333,3.1\n",
        r"no step after 0 at which all",
    ),
    "seeds without names": (
        "step,val_loss\n1,4\n2,3\n1,4.1\n2,3.1\n",
        r"every step 2 times.*add a column seed",
    ),
    "several losses of a seed without steps": (
        "seed,loss\n0,4\n0,3\n",
        r"a loss 2 times for seed 0; add a column step",
    ),
    "a bare curve": (
        table(*(f"{9 - i / 9:.3f}" for i in range(30))),
        r"30 losses without step and seed.*add a column",
    ),
    "too many fields": ("seed,step,val_loss\n0,9,3.1,7,8\n", r"cannot be read as a table"),
    "every seed diverged": ("seed,step,val_loss\n0,1000,nan\n", r"every seed diverged"),
    "broken JSON": ('{"step": 1,\n', r"expected a table, JSON lines or trainer_state"),
    "deep JSON": ("[" * 100_000, r"expected a table, JSON lines"),
    "bits against nats": (
        "seed,step,val_bpb\n0,1000,1.1\n",
        r"val_bpb \(validation bit per byte\) and .*not the same loss; choose",
    ),
    "training against validation": (
        "seed,step,train_loss\n0,1000,3\n",
        r"train_loss \(training nat\) and .* choose one by --column",
    ),
    "rows of the training split": (
        "seed,split,step,loss\n0,train,1000,3\n1,train,1000,3.1\n",
        r"loss \(training nat\) and .* choose one by --column",
    ),
    "rows of other rates": ("lr,val_loss\n0.001,3.3\n0.003,3.28\n", r"rows differ in lr; keep one"),
    "rows without their seed, as of merged cells": (
        "seed,step,loss\n0,100,3.9\n,1000,3.3\n",
        r"has rows without a seed; fill it in",
    ),
    "a grouped export of W&B": (
        '"Step","group: tied - loss"\n9,3.1\n',
        r"mean over runs; export the runs ungrouped",
    ),
    "two arms in a file": (
        "arm,seed,step,loss\na,0,1,3\nb,0,1,3\n",
        r"has the arms a, b; choose one by .*tied\.csv:a",
    ),
}


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("case", READ)
def test_files_are_read(case, tmp_path, monkeypatch):
    files, (a, b, *column), expected = READ[case]
    monkeypatch.chdir(tmp_path)
    write(tmp_path, files)
    found = jaxtie.compare(a, b, column=column[0] if column else None)
    shown = {
        "at": found.at,
        "axis": found.axis,
        "unit": found.unit,
        "column": found.arms[0].logs.column,
        "seeds": (len(found.ends.a), len(found.ends.b)),
        "paired": found.ends.paired,
    }
    expected = dict(expected)
    assert expected.pop("said", "") in " ".join(found.lines)
    if "gap" in expected:
        assert found.gap[1] == pytest.approx(expected.pop("gap"), abs=1e-6)
    assert {name: shown[name] for name in expected} == expected
    assert len(found.lines) <= 8


@pytest.mark.parametrize("case", REFUSED)
def test_files_are_refused_in_one_line(case, tmp_path, monkeypatch):
    text, words = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"tied.csv": text, "untied.csv": GOOD})
    with pytest.raises(UserError, match=words) as error:
        jaxtie.compare("tied.csv", "untied.csv")
    assert "\n" not in str(error.value)
    assert "tied.csv" in str(error.value)
