"""The page stands alone, says what the records say, and escapes what they contain."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from report_records import run, three_methods

from askew.report import page
from askew.report.tables import Column

COLUMNS = [Column("accuracy", "accuracy (%)"), Column("bits", "bits", 0, spread=False)]
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Checker(HTMLParser):
    """Balanced tags, ids used once, and every address of a src or href."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.addresses.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    return checker


def test_page_is_self_contained_and_well_formed():
    html = page.comparison("A title", "A lead.", three_methods(), COLUMNS, note="A note.")
    checker = checked(html)
    assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*(https?:)?//""", html)
    assert "@import" not in html and not re.search(r"url\(\s*[\"']?(?!#)", html)
    assert all(address.startswith(("#", "data:")) for address in checker.addresses)
    assert len(checker.ids) == len(set(checker.ids))
    assert "script" not in checker.tags
    assert "prefers-color-scheme: dark" in html and 'name="viewport"' in html


def test_page_says_what_the_records_say():
    html = page.comparison("A title", "A lead.", three_methods(), COLUMNS, note="A note.")
    for part in (
        "A title",
        "A lead.",
        "A note.",
        "97.50 ± 0.71",
        "ASkew, level-first",
        "1.250%",
        "<details>",
        "abc123+",
    ):
        assert part in html
    assert "LevelFirst(start=0.2)" in html and "torch 2.13.0" in html
    assert html.count("<svg ") == 1 + 2 + 3 + 1  # strip, two curves, a histogram a method, diagnosis


def test_page_escapes_names_settings_and_captions():
    evil = "<script>alert('x')</script>"
    runs = [
        run(
            evil,
            config={"lr": evil},
            summary={"accuracy": 1.0},
            metrics={m: {"step": [1], "value": [1.0]} for m in ("epoch_loss", "accuracy")},
            environment={"cpu": evil},
            extra={"histograms": [{"epoch": 0, "edges": [0.0, 1.0], "layers": {evil: [1]}}]},
        )
    ]
    html = page.comparison(evil, evil, runs, [Column("accuracy", evil)], note=evil)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    checked(html)


def test_page_without_histograms_or_diagnosis_leaves_those_sections_out():
    runs = three_methods()
    for one in runs:
        one.extra.clear()
        del one.metrics["diagnosis"]
    html = page.comparison("t", "l", runs, COLUMNS)
    assert "Weights over time" not in html and "Diagnosis" not in html


def test_settings_join_what_differs_between_seeds():
    runs = [run("askew", 0, config={"lr": 0.1, "epochs": 3}), run("askew", 4, config={"lr": 0.2, "epochs": 3})]
    assert page.settings(runs).rows == (("seeds", "0, 4"), ("lr", "0.1, 0.2"), ("epochs", "3"))
