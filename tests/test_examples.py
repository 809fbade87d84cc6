"""The examples run as they are."""

import runpy
from io import StringIO
from pathlib import Path

from rich.console import Console

from askew.cli import Report, report

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_quickstart() -> None:
    example = runpy.run_path(str(EXAMPLES / "01_quickstart.py"))
    assert example["main"](epochs=8) > 85


def test_a_net_of_ones_own_is_trained_goes_on_and_is_reported(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLES / "02_own_net.py"))
    accuracy = example["main"](tmp_path, epochs=8)
    assert accuracy > 85
    assert example["main"](tmp_path, epochs=8) == accuracy  # complete already: nothing is trained again
    console = Console(record=True, width=200, file=StringIO())
    report(Report(tmp_path), console)
    said = console.export_text()
    assert f"{accuracy:.2f}" in said and "ASkew, level-first" in said
    assert "1 run on digits-by-row: Reader, 65,536 weights on levels" in (tmp_path / "index.html").read_text("utf-8")
