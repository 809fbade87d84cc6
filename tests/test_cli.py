"""The command line: what a user types, what comes out, and what a mistake gets."""

import sys
from pathlib import Path

import pytest

from askew import cli, entry


def test_paper_command_writes_record_table_figure_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["paper", "vector-field", "--out", str(tmp_path), "--points", "5"])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"vector-field-mj-0.json", "table.md", "vector-field.png", "index.html"}
    assert "index.html" in capsys.readouterr().out


def test_report_makes_the_same_from_records_alone(tmp_path: Path) -> None:
    cli.main(["paper", "vector-field", "--out", str(tmp_path), "--points", "5"])
    before = (tmp_path / "table.md").read_text()
    for name in ("table.md", "index.html", "vector-field.png"):
        (tmp_path / name).unlink()
    cli.main(["report", str(tmp_path)])
    assert (tmp_path / "table.md").read_text() == before
    assert (tmp_path / "index.html").exists()


def test_an_unwritable_folder_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SystemExit) as stop:
        cli.main(["paper", "vector-field", "--out", str(blocked / "sub")])
    assert stop.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "is not writable" in message and "Traceback" not in message


def test_report_on_a_folder_without_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["report", str(tmp_path)])
    assert "no records of" in " ".join(capsys.readouterr().err.split())


def test_only_tables_of_the_paper_go_into_a_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["report", str(tmp_path), "--readme", str(tmp_path / "README.md")])
    assert "no records of askew paper" in " ".join(capsys.readouterr().err.split())


def test_ctrl_c_while_the_command_is_loading_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    monkeypatch.setattr(sys, "argv", ["askew", "train"])
    with pytest.raises(SystemExit) as stop:
        entry.main()
    assert stop.value.code == 130 and capsys.readouterr().err == "askew: stopped\n"


def test_a_flag_with_three_values_is_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        cli, "train", lambda config, console: asked.append((config.affine, config.static, config.compiled))
    )
    for words in ([], ["--affine"], ["--no-affine", "--static"], ["--affine", "False", "--no-compiled"]):
        cli.main(["train", "--data", "x", *words, "cifar10", "--device", "cpu"])
    assert asked == [(None, None, None), (True, None, None), (False, True, None), (False, None, False)]
