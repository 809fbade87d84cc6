"""What the README states comes from the committed records, and its commands exist."""

import re
from pathlib import Path

import pytest

from askew import cli
from askew.bench.command import PRESENT as BENCHES
from askew.bench.command import readme_block
from askew.report.readme import block, replace_block
from askew.train.record import load_all

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("experiment", ["two-moons", "logistic", "cifar-w1"])
def test_tables_are_made_from_the_records(experiment: str) -> None:
    records = load_all(ROOT / "results" / experiment)
    assert block(README, experiment) == cli.PRESENT[experiment](records).tables[0].markdown().strip()


@pytest.mark.parametrize("experiment", [name for name in BENCHES if (ROOT / "results" / name).exists()])
def test_benchmark_tables_are_made_from_the_records(experiment: str) -> None:
    """A benchmark with committed records has a block; `askew bench show FOLDER --readme README.md` makes it anew."""
    assert block(README, experiment) == readme_block(experiment, load_all(ROOT / "results" / experiment, experiment))


def test_records_say_how_they_were_made() -> None:
    for path in (ROOT / "results").iterdir():
        for record in load_all(path):
            assert record.environment["commit"] and record.environment["versions"]["torch"] and record.config


def test_links_and_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_replace_block() -> None:
    text = "a\n<!-- t -->\nold\n<!-- /t -->\nb\n"
    assert replace_block(text, "t", "new\n") == "a\n<!-- t -->\nnew\n<!-- /t -->\nb\n"
    with pytest.raises(ValueError, match="needs one block"):
        replace_block(text, "u", "new")
