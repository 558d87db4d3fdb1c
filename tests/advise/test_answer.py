"""`jaxtie advise`: what tying saves, published comparisons and families, the plan; refusals."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from advice_on_text import findings

import jaxtie
from jaxtie.advise import known
from jaxtie.advise.answer import BETWEEN
from jaxtie.advise.command import main_advise
from jaxtie.config import UserError

ROOT = Path(__file__).parents[2]
GPT2 = {"width": 768, "layers": 12, "vocabulary": 50_257, "tokens": 2.5e9}
LLAMA = {  # Llama 3.1 8B
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "vocab_size": 128_256,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def test_models_that_hardly_trained_are_not_in_the_headline():
    found = jaxtie.advise(width=2048, layers=16, vocabulary=128_256, tokens=1e11).lines
    assert "(hardly trained)" in "".join(found) and "-0.089" not in found[1]


def test_what_tying_saves_is_counted():
    found = jaxtie.advise(**GPT2).numbers
    table = 768 * 50_257
    assert found["saved"]["parameters"] == table
    assert found["parameters_untied"] - found["parameters_tied"] == table
    assert found["saved"]["layers"] == pytest.approx(table / (12 * 768**2 + 2 * 768))
    assert list(found["saved"]["training_bytes"].values()) == [16 * table, 12 * table, 6 * table]
    assert list(found["saved"]["bytes_in_use"].values()) == [4 * table, 2 * table, table]


def test_the_answer_comes_first_and_is_short():
    found = jaxtie.advise(**GPT2)
    assert found.lines[0].startswith("Default: tie. Rule: tie where one table is 8 % or more")
    assert len(found.lines) <= 35 and found.default == "tie"
    text = "\n".join(found.lines)
    for line in ("Tying saves (", "Others measured, nearest first", "Test it:", "In between:"):
        assert f"\n\n{line}" in text


def test_the_rule_is_the_habit_of_recent_models():
    """Counted here from the file, row by row."""
    rows = pd.read_csv(ROOT / "jaxtie/advise/families.csv").to_dict("records")
    found = {"right": 0, "often": [], "between": [], "hardly": []}
    for row in rows:
        table = row["width"] * row["vocabulary"]
        share = table / (row["parameters"] - (0 if row["tied"] else table))
        if row["year"] >= 2024:
            band = "often" if share >= 0.08 else "between" if share >= 0.02 else "hardly"
            found[band].append(row["tied"])
            found["right"] += (share >= 0.08) == row["tied"]
    for share, band in ((0.3, "often"), (0.07, "between"), (0.01, "hardly")):
        right, count, ties, models, _ = known.habit(share)
        assert (ties, models) == (sum(found[band]), len(found[band]))
        assert right == found["right"] and count == sum(
            len(found[name]) for name in found if name != "right"
        )
    large = jaxtie.advise(width=8192, layers=80, vocabulary=128_256)
    assert large.default == "do not tie" and "2 % to 8 %" not in large.lines[0]
    assert "Tie instead if memory is short, or if a test shows no gap" in large.lines[1]


def test_the_nearest_comparisons_are_of_like_size_and_one_of_each_code():
    for size, parameters in (
        (GPT2, 1.6e8),
        (dict(width=2048, layers=16, vocabulary=128_256), 1.3e9),
    ):
        near = known.nearest(parameters, size["vocabulary"], size.get("tokens"))
        assert not near.duplicated(["code", "matched"]).any()
        assert near["gap_nats"].notna().tolist() == [True] * 4 + [False] * 2
        assert near["far"][:4].is_monotonic_increasing and near["far"][4:].is_monotonic_increasing
        far = known.comparisons()
        own = (far["parameters"] / parameters).map(math.log).abs()
        assert own[near.index].median() < own.median()
    assert near["source"].str.contains("SmolLM3").sum() == 2  # at equal width and parameters


def test_a_comparison_says_size_gap_seeds_matching_rates_and_what_differs():
    rows = {own.source: known.line(own) for own in known.comparisons().itertuples()}
    line = rows["openai/parameter-golf, PR 2000"]
    assert line.startswith(
        "+0.032: 17.6M untied, vocabulary 1,024, 579M tokens, 3 seeds, equal width"
    )
    assert "rates set for each" in line and "differs: learning rates of the tables" in line
    assert line.endswith("https://github.com/openai/parameter-golf/pull/2000")
    assert "(hardly trained)" in rows["vukrosic 2026, llm-research-kit"]
    golf = rows["KellerJordan/modded-nanogpt, record 8 (2024)"]
    assert golf.startswith("steps to validation loss 3.28: 5100 tied, 4578 untied: 163M")
    assert all(math.isnan(own) or abs(own) < 1 for own in known.comparisons()["gap_nats"])


def test_our_comparisons_are_those_of_the_committed_losses():
    losses = pd.read_csv(ROOT / "experiments/data/price-of-tying-grid-losses.csv")
    means = losses.pivot_table("loss", ["vocabulary", "width"], "arm")
    ours = known.comparisons()
    ours = ours[ours["source"] == "jaxtie, price_of_tying"]
    assert len(ours) == 2 * len(means) == 16
    for own in ours.itertuples():
        arm = "tied" if own.matched == "same width" else "wider tied"
        cell = means.loc[own.vocabulary, own.width]
        assert own.gap_nats == pytest.approx(cell[arm] - cell["untied"], abs=6e-5)


def test_numbers_of_what_is_in_between_are_in_the_documents():
    documents = [
        ROOT / "experiments" / name
        for name in ("README.md", "why_seeds_get_stuck.md", "text_recipe.md")
    ]
    text = "".join(path.read_text() for path in documents)
    text += (ROOT / "jaxtie/advise/published-comparisons.csv").read_text()
    numbers = re.findall(r"\d+\.\d{2,}", " ".join(BETWEEN))
    assert len(numbers) > 8 and not [number for number in numbers if number not in text]


def test_a_test_is_planned_with_its_cost():
    found = jaxtie.advise(**GPT2).numbers["test"]
    once = jaxtie.budget(50_257, 768, 12, tied=True).training_flops * 2.5e9
    assert 3 <= found["seeds"] <= 8
    assert found["flops"] == pytest.approx(0.2 * found["seeds"] * once)
    close = jaxtie.advise(**GPT2, margin=0.003).numbers["test"]["seeds"]
    assert close > 2 * found["seeds"]
    targets = pd.read_csv(ROOT / "experiments/data/advice-on-text.csv")
    assert findings(targets).startswith("24 of 33 gaps")
    lines = jaxtie.advise(**GPT2 | {"tokens": None}, margin=1e-5).lines
    assert any("over 1,024 seeds" in line and "FLOPs" not in line for line in lines)
    assert any("held 24 of 33 gaps" in line for line in lines)
    golf = known.comparisons().query("source.str.contains('fork by Gouti629')")
    first, last = golf.sort_values("tokens").itertuples()
    shown = f"cost {first.gap_nats:.3f} nat at {first.tokens / 1e9:.1f} billion tokens,"
    shown += f" {last.gap_nats:.4f} at {last.tokens / 1e9:.1f};"
    assert any(shown in line for line in lines)


def test_a_configuration_gives_the_sizes(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    found = jaxtie.advise(path)
    assert found.numbers["parameters_untied"] == 8_030_261_248
    assert "(config.json says untied)" in found.lines[0]
    assert jaxtie.advise(tmp_path).lines == found.lines  # the folder of a checkpoint
    assert jaxtie.advise(path, vocabulary=32_000).numbers["parameters_untied"] < 7.3e9
    assert jaxtie.advise(path, width=2048).numbers["parameters_tied"] < 2e9  # heads are not its own
    path.write_text(json.dumps({"text_config": LLAMA}))
    assert jaxtie.advise(path).numbers == found.numbers
    assert main_advise([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.as_dict()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("{", "expected a model's config.json"),
        ("[1]", "expected a model's config.json"),
        ("[" * 100_000, "expected a model's config.json"),
        ({"hidden_size": None}, "expected --width: .* has none"),
        ({"hidden_size": "wide"}, "width = 'wide': expected a positive integer"),
        ({"vocab_size": True}, "vocabulary = True: expected a positive integer"),
        ({"intermediate_size": -1}, "feedforward = -1: expected a positive integer"),
        (
            {"hidden_act": ["silu"], "num_hidden_layers": 0},
            "layers = 0: expected a positive integer",
        ),
        ({"num_experts": 64}, "num_experts: counted are dense transformers of one stack, with"),
        ({"moe_num_experts": 64}, "moe_num_experts: counted are dense"),
        ({"ffn_config": {"moe_num_experts": 16}}, "moe_num_experts: counted are dense"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: counted are dense"),
        ({"state_size": 16}, "state_size: counted are dense"),
        ({"embedding_size": 128}, "embedding_size: counted are dense"),
        ({"num_key_value_heads": 3}, "kv_heads = 3; expected a divisor of heads"),
    ],
)
def test_other_configurations_are_refused_in_one_line(tmp_path, change, words):
    path = tmp_path / "config.json"
    path.write_text(change if isinstance(change, str) else json.dumps(LLAMA | change))
    with pytest.raises(UserError, match=words) as error:
        jaxtie.advise(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "expected --width and --layers and --vocabulary, or CONFIG"),
        ("--width 0", "--width"),
        ("--tokens 0", "such as 2e9"),
        ("--width 8 --layers 2 --vocabulary 9 --tokens 0.5", "tokens = 0.5: expected a number of"),
        ("nowhere", "nowhere: no such file or folder"),
        (".", "has no config.json; give --width"),
        ("--width 8 --layers 2 --vocabulary 9 --margin nan", "expected a gap above 0"),
        ("--text books/", "--text"),
    ],
)
def test_other_arguments_are_refused_in_one_line(tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.chdir(tmp_path)
    assert main_advise(words.split()) == 2
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("\n") == 1 and expected in printed.err


def test_it_imports_no_jax_and_takes_seconds():
    code = (
        "import sys, time; from jaxtie.advise.command import main_advise\n"
        "main_advise('--width 768 --layers 12 --vocabulary 50257 --tokens 2e9'.split())\n"
        "names = [name for name in ('jax', 'matplotlib', 'xarray') if name in sys.modules]\n"
        "print(names, time.process_time() < 4)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("[] True\n"), done.stderr


def test_sizes_are_shown_with_three_digits():
    assert [known.short(size) for size in (3, 999, 1234, 1.46e9, 2e12)] == [
        "3",
        "999",
        "1.23K",
        "1.46B",
        "2T",
    ]


@pytest.mark.parametrize("name", ["README.md", "jaxtie/advise/README.md"])
def test_the_readmes_show_the_real_output(name, capsys):
    text = (ROOT / name).read_text()
    start = "$ jaxtie advise" if name == "README.md" else "```\nDefault:"
    block = text[text.index(start) :].removeprefix("```\n").split("```")[0].splitlines()
    block = block[1 : block.index("...")] if name == "README.md" else block
    words = "--width 768 --layers 12 --vocabulary 50257 --tokens 2.5e9".split()
    assert main_advise(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(block) > 1 and not [line for line in block if line not in lines]
    assert all(len(line) <= 100 or "https://" in line for line in lines)
