"""How methods are called and drawn: one place, so that a method has one name and one colour everywhere.

The colours start from Okabe and Ito's colour-blind-safe set, darkened or lightened until each has a contrast of
3 to 1 or more on white and on the page's dark ground; line style and marker tell methods apart without colour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

INK = "#24292f"  # text and axes; becomes the page's own text colour in an inline SVG
LIGHT_GROUND, DARK_GROUND = "#ffffff", "#14171b"


@dataclass(frozen=True)
class Look:
    """A method's name in tables and its colour, line and marker in figures."""

    label: str
    colour: str
    line: Any = "-"
    marker: str = "o"


LOOKS: dict[str, Look] = {
    "full-precision": Look("full precision", "#7b838c", (0, (5, 2)), "s"),
    "binaryconnect": Look("BinaryConnect", "#d55e00", (0, (2, 1.5)), "D"),
    "binaryconnect-stochastic": Look("BinaryConnect, stochastic", "#b0722c", (0, (1, 1)), "d"),
    "askew-level-first": Look("ASkew, level-first", "#1a7fc4", "-", "o"),
    "askew-level-first-dithered": Look("ASkew, level-first, dithered", "#2b87a8", "-", "8"),
    "askew-level-first-rounded": Look("ASkew, level-first, rounded", "#3f6fb5", (0, (8, 1)), "p"),
    "askew-level-first-reversible": Look("ASkew, level-first, reversible", "#5a6fd0", (0, (3, 1, 3, 1, 1, 1)), "4"),
    "askew": Look("ASkew, as in the paper", "#4f74d9", (0, (6, 1.5, 1, 1.5)), "P"),
    "adaste": Look("AdaSTE", "#0a9270", (0, (4, 1, 1, 1)), "^"),
    "md-tanh": Look("mirror descent (tanh)", "#b8609b", (0, (3, 1, 1, 1)), "v"),
    "proxquant": Look("ProxQuant", "#8a7d13", (0, (1, 2)), "<"),
    "projected": Look("projected gradient", "#8f6a9e", (0, (5, 1)), ">"),
    "luq": Look("LUQ", "#2f8f9d", (0, (3, 2, 1, 2)), "X"),
    "parq": Look("PARQ", "#c4515b", (0, (4, 2)), "*"),
    "parq-fixed": Look("PARQ, fixed levels", "#bf5a75", (0, (4, 2, 1, 2)), "H"),
    "lsq": Look("LSQ", "#6d8a2f", (0, (3, 1)), "1"),
    "parq-hard": Look("PARQ, hard", "#a3604f", (0, (2, 2)), "h"),
    "exhaustive": Look("exhaustive search", "#6f7d5c", (0, (1, 1)), "2"),
}
WIDTH = re.compile(r"(\d+)bit|w(\d+)a(\d+)")
OTHER = Look("", "#7b838c", (0, (1, 1)), "x")

RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "askew",
}


def look(method: str) -> Look:
    """A method's look, also under a name that ends in its width (-1bit, -w2a4); an unknown one's is grey.

    METHOD|3|WORDS is the third of several kinds of runs of a method: its words follow the label, its line is its own.
    """
    if method.count("|") >= 2:
        named, number, words = method.split("|", 2)
        kind = look(named)
        return Look(f"{kind.label}, {words}", kind.colour, _dashes(int(number), kind.line), kind.marker)
    base, _, width = method.rpartition("-")
    bits = WIDTH.fullmatch(width)
    if method not in LOOKS and base in LOOKS and bits:
        named = LOOKS[base]
        return Look(f"{named.label}{_words(*bits.groups())}", named.colour, named.line, named.marker)
    return LOOKS.get(method) or Look(method, OTHER.colour, OTHER.line, OTHER.marker)


def _dashes(number: int, first: Any) -> Any:
    """The line of a method's kind of runs: the method's own for the first one, then longer and longer dashes."""
    return first if number == 1 else (0, (number, 1.2, 1, 1.2))


def _words(bits: str | None, weights: str | None, activations: str | None) -> str:
    """', 2 bits' or ', W2/A4'; nothing for 32 bits, which only full precision has."""
    if bits is None:
        return f", W{weights}/A{activations}"
    return "" if bits == "32" else f", {bits} bit{'' if bits == '1' else 's'}"
