"""Tables inside a Markdown file, kept between two marker lines, so that they can be made anew from records."""

from __future__ import annotations

import re


def replace_block(text: str, name: str, block: str) -> str:
    """The text with what stands between `<!-- NAME -->` and `<!-- /NAME -->` replaced by the block."""
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    out, count = pattern.subn(lambda m: f"{m.group(1)}{block.strip()}\n{m.group(2)}", text)
    if count != 1:
        raise ValueError(f"the file needs one block <!-- {name} --> ... <!-- /{name} -->, it has {count}")
    return out


def block(text: str, name: str) -> str:
    """What stands between the markers."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n(.*?)<!-- /{re.escape(name)} -->", text, re.DOTALL)
    if not found:
        raise ValueError(f"the file has no block named {name!r}")
    return found.group(1).strip()
