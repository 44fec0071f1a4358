"""What mkdocs does beyond its plugins: formulas become MathML, and docstrings' formulas become Markdown's."""

import re
from html import unescape
from typing import Any

import griffe
from mathml import mathml

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Draw the formulas that the arithmatex extension has found."""
    html = INLINE.sub(lambda found: mathml(unescape(found[1])), html)
    return BLOCK.sub(lambda found: mathml(unescape(found[1]), block=True), html)


class DocstringMath(griffe.Extension):
    """Reads `:math:` and `.. math::` of docstrings as formulas."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = re.sub(r":math:`([^`]+)`", r"$\1$", obj.docstring.value)
            obj.docstring.value = re.sub(r"^\.\. math:: (.+)$", r"$$\n\1\n$$", text, flags=re.MULTILINE)
