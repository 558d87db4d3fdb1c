"""The page of the recipe is that of the committed search, and its rates are the best tried."""

import re

import pandas as pd
import pytest
import recipe


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.concat(map(pd.read_csv, sorted(recipe.DATA.glob("recipe-*.csv"))))


def test_the_page_is_what_the_script_writes():
    assert recipe.page() == recipe.PAGE.read_text()


def test_numbers_of_the_text_are_in_the_table_or_the_data(rows):
    text = recipe.PAGE.read_text()
    tables = re.compile(r"<!-- table.*?end of table -->", re.DOTALL)
    means = rows.groupby(["width", "recipe", "arm", "k"])["odd"].mean()
    known = "".join(tables.findall(text)) + " ".join(f"{each:.3f}" for each in means)
    known += f" {rows['counts'].iloc[0]:.3f} 0.02²"
    prose = re.sub(r"\]\([^)]*\)", "", tables.sub("", text))
    assert not [each for each in re.findall(r"\d+\.\d+", prose) if each not in known]


def test_the_best_rate_has_a_neighbour_on_both_sides(rows):
    """But for the last cell, which was left unfinished and is not in the table."""
    edges = set()
    for (width, name, arm), own in rows[rows["seed"] == 0].groupby(["width", "recipe", "arm"]):
        loss = own.set_index("k")["even"].to_dict()
        if recipe.next_rate(loss, 0) is not None:
            edges.add((width, name, arm))
    assert edges == {(64, "N(0, 1), logits times 1/√D", "untied")}
    shown = [row[:2] for row in recipe.table(rows).rows]
    assert ("64", "N(0, 1), logits times 1/√D") not in shown and len(shown) == 5


def test_the_experiment_has_the_rates_of_the_rule(rows):
    """Of width 128 and a learned scale."""
    from jaxtie.run.experiment_files import find_experiment, load_experiment

    own = rows[(rows["width"] == 128) & (rows["recipe"] == "N(0, 0.02²), learned scale")]
    for arm, name in (("tied", "tying_at_scale"), ("untied", "tying_at_scale_untied")):
        searched = own[(own["arm"] == arm) & (own["seed"] == 0)]
        best = searched.loc[searched["even"].idxmin(), "rate"]
        assert load_experiment(find_experiment(name)).optimizer.learning_rate == best
