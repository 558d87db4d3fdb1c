"""Exports with traps: each is read rightly, or refused in one line; none is wrong in silence."""

import gzip
import json
import math
from pathlib import Path

import pytest

import jaxtie
from jaxtie.compare import decide
from jaxtie.config import UserError


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """The plan of further seeds is not what these tests are about."""
    monkeypatch.setattr(decide, "DRAWS", 10)


ARMS = {"tied": ("3.320", "3.331", "3.345"), "untied": ("3.300", "3.311", "3.325")}
THREE = {"gap": 0.02, "seeds": (3, 3)}


def seeds(row, head="", tail=""):
    """A row of each seed, in which S is the seed, L its loss, P its perplexity, R its bits."""

    def text(losses):
        rows = [
            row.replace("S", str(seed))
            .replace("L", loss)
            .replace("P", f"{math.exp(float(loss)):.6f}")
            .replace("D", loss.replace(".", ","))
            for seed, loss in enumerate(losses)
        ]
        return head + "".join(rows) + tail

    return {f"{arm}.csv": text(losses) for arm, losses in ARMS.items()}


def files(name, text):
    """A file of each seed, in whose name A is the arm and S the seed; L and P as in `seeds`."""
    return {
        name.replace("A", arm).replace("S", str(seed)): text.replace("L", loss).replace(
            "P", f"{math.exp(float(loss)):.6f}"
        )
        for arm, losses in ARMS.items()
        for seed, loss in enumerate(losses)
    }


def history(*rows):
    return json.dumps({"global_step": 1000, "log_history": list(rows)})


READ = {
    "history of W&B, saved by pandas": (
        seeds("0,500,1.5,9.0,S\n1,1000,2.5,L,S\n", ",_step,_runtime,val/loss,seed\n"),
        THREE | {"at": 1000},
    ),
    "table of runs of W&B": (
        seeds(
            "bold-sun-S,finished,-,2026-01-01T00:00:00.000Z,100,,S,L\n",
            "Name,State,Notes,Created,Runtime,Tags,seed,val_loss\n",
        ),
        THREE | {"paired": 3},
    ),
    "the logger's step and the user's": (
        seeds("7S,1000,S,L\n", "_step,step,seed,loss\n"),
        THREE | {"at": 1000},
    ),
    "mean and std below the seeds": (
        seeds("S,L\n", "seed,val_loss\n", "mean,3.332\nstd,0.0125\nMean ± std,3.33\n"),
        THREE | {"paired": 3, "said": "mean, std"},
    ),
    "mean and std as columns": (
        {
            f"{arm}.csv": f"step,0,1,2,mean,std\n9,{','.join(own)},3.332,0.01\n"
            for arm, own in ARMS.items()
        },
        THREE | {"at": 9},
    ),
    "ln of perplexity, by name": (seeds("S,9,L\n", "seed,step,eval_log_ppl\n"), THREE),
    "unit in the name": (seeds("S,9,L\n", "seed,step,val_loss (nats)\n"), THREE),
    "Perplexity of OLMo": (
        seeds("S,9,P\n", "seed,_step,eval/c4-validation/Perplexity\n"),
        THREE | {"said": "converted to nats"},
    ),
    "TensorBoard, perplexity by its tag": (
        files("A/run-A_seedS-tag-eval_perplexity.csv", "Wall time,Step,Value\n1.5,10,P\n"),
        THREE | {"said": "converted to nats"},
    ),
    "TensorBoard, bits per byte by its tag": (
        files("A/run-A_seedS-tag-val_bpb.csv", "Wall time,Step,Value\n1.5,10,L\n"),
        THREE | {"unit": "bit per byte"},
    ),
    "tags and values": (
        seeds(
            "S,500,train/loss,2.1\nS,500,val/loss,L\nS,500,val/accuracy,0.4\n",
            "seed,step,tag,value\n",
        ),
        THREE | {"at": 500, "column": "val/loss"},
    ),
    "tags and values, perplexity": (
        seeds("S,500,val_acc,0.4\nS,500,val_ppl,P\n", "seed,step,tag,value\n"),
        THREE | {"said": "converted to nats"},
    ),
    "tags and values, accuracy of validation": (
        seeds("S,500,train/loss,L\nS,500,val/accuracy,0.4\n", "seed,step,tag,value\n"),
        THREE | {"column": "train/loss"},
    ),
    "MLflow": (
        seeds(
            "rS,lr,0.001,500,1700\nrS,val_loss,L,500,1700\n", "run_id,key,value,step,timestamp\n"
        ),
        THREE | {"at": 500},
    ),
    "Keras": (
        files(
            "A_S.csv", "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.1,5,0.1,5\n1,0.2,3,0.2,L\n"
        ),
        THREE | {"axis": "epoch", "at": 1, "column": "val_loss"},
    ),
    "fastai": (
        files("A_S.csv", "epoch,train_loss,valid_loss,accuracy,time\n0,5.0,L,0.1,00:15\n"),
        THREE | {"column": "valid_loss", "at": 0},
    ),
    "a mean at the end of trainer_state.json": (
        {
            name: text.replace('"L"', text[-1]).replace("$", "")
            for name, text in files(
                "A/seedS/trainer_state.json",
                history(
                    {"step": 500, "loss": 4.5},
                    {"step": 1000, "loss": "$L$"},
                    {"step": 1000, "train_loss": 4.9, "train_runtime": 9.5},
                ),
            ).items()
        },
        THREE | {"at": 1000, "column": "loss"},
    ),
    "eval_results.json": (
        files("A/seed-S/eval_results.json", '{"epoch": 3.0, "eval_loss": L, "perplexity": 27.1}'),
        THREE | {"axis": "epoch", "column": "eval_loss"},
    ),
    "JSON of columns": (
        files("A_S.json", '{"step": [500, 1000], "val_loss": [4.5, L]}'),
        THREE | {"at": 1000},
    ),
    "JSON of seeds": (
        {f"{arm}.csv": json.dumps(dict(enumerate(map(float, own)))) for arm, own in ARMS.items()},
        THREE | {"paired": 3, "axis": ""},
    ),
    "JSON of objects of seeds": (
        {
            f"{arm}.csv": json.dumps(
                {f"seed_{s}": {"val_loss": float(x)} for s, x in enumerate(own)}
            )
            for arm, own in ARMS.items()
        },
        THREE | {"paired": 3},
    ),
    "JSON lines of training and of validation": (
        files(
            "A_S.jsonl",
            '{"step": 0, "train_loss": 9.5}\n{"step": 0, "val_loss": 9.5}\n'
            '{"step": 50, "train_loss": 3.1}\n{"step": 50, "val_loss": L}\n',
        ),
        THREE | {"at": 50, "column": "val_loss"},
    ),
    "runs of one name of W&B": (
        {
            f"{arm}.csv": '"Step","run - loss","run - loss","run - loss"\n9,' + ",".join(own) + "\n"
            for arm, own in ARMS.items()
        },
        THREE,
    ),
    "a file that ends within a row": (
        {name: text[:-8] for name, text in seeds("S,5,9L\nS,1000,L\n", "seed,step,ppl\n").items()},
        {"seeds": (3, 3), "at": 5, "said": "compared at 5, the last common step"},
    ),
    "old line ends": (
        {n: t.replace("\n", "\r") for n, t in seeds("S,9,L\n", "seed,step,loss\n").items()},
        THREE,
    ),
    "steps as 1e3 and 1000.0": (
        seeds("S,5e2,7.5\nS,1e3,L\nS,900.0,4.5\n", "seed,step,loss\n"),
        THREE | {"at": 1000},
    ),
    "halves of epochs": (
        seeds("S,1.5,L\nS,0.5,9\nS,1.0,5\n", "seed,epoch,loss\n"),
        THREE | {"at": 1.5},
    ),
    "infinite within, finite at the end": (
        seeds("S,1,inf\nS,2,L\n", "seed,step,loss\n"),
        THREE | {"at": 2},
    ),
    "columns of seeds and of two losses": (
        {
            f"{arm}.csv": "step,"
            + ",".join(f"train_loss_seed{s},val_loss_seed{s}" for s in range(3))
            + "\n9,"
            + ",".join(f"2.5,{x}" for x in own)
            + "\n"
            for arm, own in ARMS.items()
        },
        THREE | {"column": "val_loss"},
    ),
    "steps and tokens, and tokens only": (
        {
            "tied.csv": "seed,step,tokens,loss\n0,1,500,4\n0,2,1000,3.32\n",
            "untied.csv": "seed,tokens,loss\n0,500,4\n0,1000,3.3\n",
        },
        {"gap": 0.02, "axis": "tokens", "at": 1000},
    ),
    "a table of Markdown": (
        seeds("| S | L |\n", "| seed | val_loss |\n|---|---|\n"),
        THREE | {"paired": 3},
    ),
    "one rate in all names": (
        files("A-lr0.001-width64-S.csv", "step,loss\n9,L\n"),
        THREE | {"paired": 3},
    ),
    "blanks of Excel": (seeds("S,500,L\nS,600,#N/A\n", "seed,step,loss\n"), THREE | {"at": 500}),
    "a column of arms by true and false": (
        {
            "all.csv": "config/tie_word_embeddings,seed,step,loss\n"
            + "".join(
                f"{str(arm == 'tied').lower()},{s},9,{x}\n"
                for arm, own in ARMS.items()
                for s, x in enumerate(own)
            )
        },
        THREE | {"arms": ("all.csv:true", "all.csv:false")},
    ),
    "a cell of another column names the arm, a number does not": (
        {
            "all.csv": "Embeddings,Seed,Step,Loss\n"
            + "".join(f"{arm},{s},9,{x}\n" for arm, own in ARMS.items() for s, x in enumerate(own))
        },
        THREE | {"arms": ("all.csv:tied", "all.csv:untied")},
    ),
    "chosen perplexity": (
        seeds("S,9,P,3.3\n", "seed,step,val_ppl_wiki,val_ppl_c4\n"),
        THREE | {"chosen": "val_ppl_wiki", "said": "converted to nats"},
    ),
    "chosen bits": (
        seeds("S,9,L,3.3\n", "seed,step,bpb_wiki,bpb_c4\n"),
        THREE | {"chosen": "bpb_wiki", "unit": "bit per byte"},
    ),
}
HEAD = "seed,step,loss\n"
REFUSED = {
    "accuracy of TensorBoard": (
        {"tied-tag-eval_accuracy.csv": "Wall time,Step,Value\n1.5,9,0.4\n"},
        "no loss among its columns .Wall time, eval_accuracy",
    ),
    "training and validation of TensorBoard": (
        {
            "tied_seed0-tag-train_loss.csv": "Wall time,Step,Value\n1.5,0,9\n1.5,8,3\n",
            "tied_seed0-tag-val_loss.csv": "Wall time,Step,Value\n1.5,9,3.3\n",
        },
        "train_loss in .* and val_loss in .*give files of one loss",
    ),
    "a chosen accuracy": ("seed,step,val_acc,loss\n0,9,0.4,3\n", "val_acc is no loss", "val_acc"),
    "means over runs of W&B": ('"Step","tied: true - loss"\n9,3.1\n', "mean over runs"),
    "rates in the names, no seeds": (
        {"tied-lr0.001.csv": "step,loss\n9,3.3\n", "tied-lr0.003.csv": "step,loss\n9,3.2\n"},
        "differ in lr0.001 and lr0.003, not in the seed",
    ),
    "a row of steps": ("100,200,300,400\n5.1,4.2,3.6,3.3\n", "are .100, 200, 300. steps or seeds"),
    "a bare curve that falls with noise": (
        "".join(f"{4 - i / 20 + (-1) ** i * 0.06:.3f}\n" for i in range(20)),
        "20 losses without step and seed",
    ),
    "both marks of decimals": (
        "seed;step;loss\n0;1,000;3.331\n",
        "1,000 and 3.331: which is the decimal mark",
    ),
    "decimal commas and thousands of dots": (
        "seed;step;loss\n0;500;9,1\n0;1.000;3,32\n",
        "9,1 and 1.000: which is the decimal mark",
    ),
    "thousands of commas": (HEAD + '0,"1,000",3.3\n', "'1,000' is no number"),
    "a resumed run in two files": (
        {
            "tied_seed0.csv": "step,loss\n0,9\n500,4\n",
            "tied_seed0_b.csv": "step,loss\n500,4.1\n1000,3.32\n",
        },
        "both look like seed 0",
    ),
    "percent": (HEAD + "0,9,330%\n", "'330%' is no number"),
    "a unit in a cell": (HEAD + "0,9,3.3 nat\n", "'3.3 nat' is no number"),
    "a comma in a cell": (HEAD + '0,9,"3,32"\n', "'3,32' is no number"),
    "an error of Excel": (HEAD + "0,9,#DIV/0!\n", "'#DIV/0!' is no number"),
    "plus and minus": (HEAD + "0,9,3.3 ± 0.1\n", "'3.3 ± 0.1' is no number"),
    "a negative step": ("seed,step,loss\n0,-1,3.1\n", "'-1' is impossible"),
    "a date as step": ("seed,step,loss\n0,2026-01-01,3.1\n", "'2026-01-01' is no number"),
    "a step that is missing": ("seed,step,loss\n0,9,3.1\n0,,3.0\n", "line 3: has no step; add it"),
    "tokens in billions": ("seed,tokens,loss\n0,0.5,3.1\n", "cannot be matched|no tokens after 0"),
    "steps from 0": (HEAD + "0,998,4\n0,999,3.1\n", "no step after 0"),
    "all diverged at the end": (HEAD + "0,1000,nan\n1,1000,inf\n", "every seed diverged"),
    "sums over tokens": (HEAD + "0,1000,3312.5\n", "above 30"),
    "a log of modded-nanogpt": (
        "step:0/9 val_loss:10.8 t:0ms\nstep:9/9 val_loss:3.2 t:1ms\n",
        "no number|cannot be read",
    ),
    "a page": ("<!DOCTYPE html><html><body>log in</body></html>", "no loss|header only|cannot be"),
    "a pointer of Git LFS": (
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
        "no loss|cannot be read|no number",
    ),
    "a spreadsheet": (b"PK\x03\x04\x14\x00\x06\x00", "or no text; unpack it, or export it as CSV"),
    "events of TensorBoard": (b"\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7f", "or no text; unpack it"),
    "two rows of header": ("loss,loss,loss\n0,1,2\n3.3,3.3,3.3\n", "choose one by --column"),
    "names twice": ("seed,step,loss,loss\n0,9,3.3,3.4\n", "choose one|keep one"),
    "steps as rows, by seed": ("seed,100,200\n0,4.1,3.2\n", "has several columns"),
    "objects by step": ('{"100": {"loss": 4.1}, "200": {"loss": 3.2}}', "choose one by --column"),
    "lists of losses": ('{"seed": 0, "loss": [[4.1], [3.2]]}', "no number"),
    "only a mean": ("seed,loss\nmean,3.3\nstd,0.01\n", "has no losses but mean, std"),
    "compressed": (
        gzip.compress(b"seed,step,loss\n" + b"0,9,3.3\n" * 9),
        "is compressed, or no text",
    ),
    "an arm by a step": (
        {"tied.csv": HEAD + "0,9,3.1\n"},
        "has no run or arm 9",
        None,
        "tied.csv:9",
    ),
    "accuracy only": ("seed,step,accuracy\n0,9,0.4\n", "no loss among its columns"),
    "gaps": ("seed,step,loss_gap\n0,9,0.4\n", "no loss among its columns"),
    "perplexity below 1": ("seed,step,val_ppl\n0,9,0.99\n", "expected at least 1"),
    "UTF-16 without a mark": ("seed,step,loss\n0,9,3.1\n".encode("utf-16-le"), "no text"),
}


def write(folder, texts):
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("case", READ)
def test_exports_are_read(case, tmp_path, monkeypatch):
    texts, expected = READ[case][0], dict(READ[case][1])
    monkeypatch.chdir(tmp_path)
    write(tmp_path, texts)
    first = {"tied.csv", "tied"} & {path.name for path in tmp_path.iterdir()}
    usual = (*first, f"un{next(iter(first))}") if first else ("tied*", "untied*")
    a, b = expected.pop("arms", usual)
    found = jaxtie.compare(a, b, column=expected.pop("chosen", None))
    assert expected.pop("said", "") in " ".join(found.lines)
    if "gap" in expected:
        assert found.gap[1] == pytest.approx(expected.pop("gap"), abs=1e-6)
    shown = {
        "at": found.at,
        "axis": found.axis,
        "unit": found.unit,
        "column": found.arms[0].logs.column,
        "seeds": (len(found.ends.a), len(found.ends.b)),
        "paired": found.ends.paired,
    }
    assert {name: shown[name] for name in expected} == expected
    assert len(found.lines) <= 8


@pytest.mark.parametrize("case", REFUSED)
def test_exports_are_refused_in_one_line(case, tmp_path, monkeypatch):
    texts, words, column, arm = (*REFUSED[case], None, None)[:4]
    monkeypatch.chdir(tmp_path)
    write(tmp_path, texts if isinstance(texts, dict) else {"tied.csv": texts})
    write(tmp_path, {"untied.csv": HEAD + "0,1000,3.3\n1,1000,3.31\n"})
    with pytest.raises(UserError, match=words) as error:
        jaxtie.compare(arm or "tied*", "untied.csv", column=column)
    assert "\n" not in str(error.value) and "tied" in str(error.value)


def test_published_seeds_have_the_answers_of_the_readme(tmp_path, monkeypatch):
    """Losses as listed in pull request 175 of modded-nanogpt, and a table of a README."""
    monkeypatch.undo()  # all draws
    monkeypatch.chdir(tmp_path)
    tied = "3.2777 3.2790 3.2776 3.2792 3.2760 3.2792 3.2767 3.2763 3.2770"
    untied = "3.2754 3.2756 3.2779 3.2746 3.2740"
    write(tmp_path, {"tied.txt": "\n".join(tied.split()), "untied.txt": "\n".join(untied.split())})
    lines = jaxtie.compare("tied.txt", "untied.txt", margin=0.002).lines
    package = Path(jaxtie.__file__).parent
    assert "\n".join(lines) in (package / "compare/README.md").read_text()
    assert "\n".join(lines[:2]) in (package.parent / "README.md").read_text()
    head = "| Config | Embeddings | Seed | Val bpb | Model params |\n|---|---|---|---|---|\n"
    rows = zip((123, 12, 712), ("1.345", "1.342", "1.343"), ("1.324", "1.325", "1.323"))
    rows = [
        f"| `{s}` | {arm} | {s} | {x} | 17,059,912 |\n"
        for s, a, b in rows
        for arm, x in (("Tied", a), ("Untied", b))
    ]
    write(tmp_path, {"golf.md": head + "".join(rows)})
    found = jaxtie.compare("golf.md:Tied", "golf.md:Untied")
    assert found.gap[1] == pytest.approx(0.0193, abs=1e-4) and found.decision == "larger"
    assert found.ends.paired == 3 and found.unit == "bit per byte"
