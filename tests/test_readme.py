"""What the README states comes from the committed records, and its commands exist."""

import re
from pathlib import Path

import pytest

from askew import cli
from askew.bench.command import PRESENT as BENCHES
from askew.bench.command import readme_block
from askew.paper.present import markdown
from askew.report.readme import block, replace_block
from askew.train.record import load_all

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


RECORDED = [name for name in cli.PRESENT if any((ROOT / "results" / name).glob("*.json"))]


@pytest.mark.parametrize("experiment", RECORDED)
def test_tables_are_made_from_the_records(experiment: str) -> None:
    """`askew report results/NAME --readme README.md` makes them anew."""
    folder = ROOT / "results" / experiment
    shown = cli.PRESENT[experiment](load_all(folder))
    assert (folder / "table.md").read_text("utf-8") == markdown(shown)
    if f"<!-- {experiment} -->" in README:
        whole = f"results/{experiment}/table.md"
        assert block(README, experiment) == shown.tables[0].brief(f"[{whole}]({whole})").markdown().strip()
    assert {path.stem for path in folder.glob("*.png")} == {*shown.figures}


@pytest.mark.parametrize("experiment", [name for name in BENCHES if (ROOT / "results" / name).exists()])
def test_benchmark_tables_are_made_from_the_records(experiment: str) -> None:
    """A benchmark with committed records has a block; `askew bench show FOLDER --readme README.md` makes it anew."""
    assert block(README, experiment) == readme_block(experiment, load_all(ROOT / "results" / experiment, experiment))


def test_records_say_how_they_were_made() -> None:
    for path in (ROOT / "results").iterdir():
        for record in load_all(path):
            said = record.environment
            assert int(said["commit"].rstrip("+"), 16) and said["versions"]["torch"] and said["system"], record.name
            assert record.config and record.config.get("train_set") != "made-up", record.name


def test_links_and_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_replace_block() -> None:
    text = "a\n<!-- t -->\nold\n<!-- /t -->\nb\n"
    assert replace_block(text, "t", "new\n") == "a\n<!-- t -->\nnew\n<!-- /t -->\nb\n"
    with pytest.raises(ValueError, match="needs one block"):
        replace_block(text, "u", "new")
