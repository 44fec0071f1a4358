"""What mkdocs does beyond its plugins: formulas become MathML, which browsers draw themselves.

Knows the part of TeX that the pages use, and raises on all else, so that the build finds a formula that it
would spoil. Docstrings' formulas become Markdown's first.
"""

import re
from html import escape, unescape
from typing import Any

import griffe

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
EXAMPLE = re.compile(r"^>>> .+(?:\n.+)*", re.MULTILINE)
GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "varepsilon": "ε", "epsilon": "ϵ", "theta": "θ",
    "kappa": "κ", "lambda": "λ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "omega": "ω",
    "mu": "μ", "eta": "η",
    "Theta": "Θ", "ell": "ℓ", "partial": "∂", "infty": "∞",
}  # fmt: skip
OPERATORS = {
    "le": "≤", "ge": "≥", "approx": "≈", "ne": "≠", "cdot": "⋅", "pm": "±", "times": "×", "dots": "…",
    "cdots": "⋯",
    "in": "∈", "leftarrow": "←", "to": "→", "mapsto": "↦", "sum": "∑",
}  # fmt: skip
FENCES = {"lVert": "‖", "rVert": "‖", "|": "‖", "lvert": "|", "rvert": "|", "{": "{", "}": "}"}
NAMES = ("sin", "cos", "log", "exp", "arg")
LIMITS = ("min", "max", "sum")
"""What takes its index below itself in a displayed formula."""
SPACES = {",": 0.17, ":": 0.22, ";": 0.28, "quad": 1, "qquad": 2, "!": -0.17, " ": 0.25}
SIZES = ("left", "right", "big", "bigl", "bigr", "Big", "Bigl", "Bigr")
ENDS = ("}", "&", "\\\\", "\\end")
TOKENS = re.compile(r"\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\S")


def on_page_content(html: str, **_: Any) -> str:
    """Draw the formulas that the arithmatex extension has found."""
    html = INLINE.sub(lambda found: mathml(unescape(found[1])), html)
    return BLOCK.sub(lambda found: mathml(unescape(found[1]), block=True), html)


class DocstringMath(griffe.Extension):
    """Reads `:math:` and `.. math::` of docstrings as formulas, and examples as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = re.sub(r":math:`([^`]+)`", r"$\1$", obj.docstring.value)
            text = re.sub(r"^\.\. math::\s+(.+(?:\n .+)*)$", r"$$\n\1\n$$", text, flags=re.MULTILINE)
            # An example ends at a blank line. Unfenced, brackets in its output would be read as links.
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)


class UnknownTeXError(ValueError):
    """A formula uses what this converter does not know."""


def mathml(tex: str, *, block: bool = False) -> str:
    r"""One formula as a `<math>` element.

    >>> mathml(r"x_1 \le 2")
    '<math alttext="x_1 \\le 2"><mrow><msub><mi>x</mi><mn>1</mn></msub><mo>≤</mo><mn>2</mn></mrow></math>'
    """
    reader = _Reader(tex.strip())
    body = reader.row()
    if reader.tokens:
        raise UnknownTeXError(f"formula {tex!r}: stops at {reader.tokens[-1]!r}")
    kind = ' display="block"' if block else ""
    return f'<math{kind} alttext="{escape(tex.strip(), quote=True)}">{body}</math>'


def _fence(sign: str, *, stretch: bool = False) -> str:
    return f'<mo stretchy="{str(stretch).lower()}" lspace="0" rspace="0">{sign}</mo>'


class _Reader:
    """Recursive descent; tokens are taken from the end of a reversed list."""

    def __init__(self, tex: str) -> None:
        self.tex = tex
        self.tokens: list[str] = TOKENS.findall(tex)[::-1]

    def peek(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def take(self) -> str:
        if not self.tokens:
            raise UnknownTeXError(f"formula {self.tex!r}: ends too early")
        return self.tokens.pop()

    def expect(self, token: str) -> None:
        if (found := self.take()) != token:
            raise UnknownTeXError(f"formula {self.tex!r}: expected {token!r}, got {found!r}")

    def row(self) -> str:
        parts = []
        while self.tokens and self.peek() not in ENDS:
            parts.append(self.with_scripts())
        return f"<mrow>{''.join(parts)}</mrow>"

    def with_scripts(self) -> str:
        under = self.peek().lstrip("\\") in LIMITS
        base = self.atom()
        scripts = {}
        while self.peek() in ("_", "^", "'"):
            mark = self.take()
            scripts["^" if mark == "'" else mark] = "<mo>′</mo>" if mark == "'" else self.atom()
        if not scripts:
            return base
        names = ("munder", "mover", "munderover") if under else ("msub", "msup", "msubsup")
        name = names[2] if len(scripts) == 2 else names["^" in scripts]
        return f"<{name}>{base}{scripts.get('_', '')}{scripts.get('^', '')}</{name}>"

    def atom(self) -> str:
        token = self.take()
        if token == "{":
            inside = self.row()
            self.expect("}")
            return inside
        if token.startswith("\\"):
            return self.command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token in "()[]|":
            return _fence(token)
        if token in "+-=<>,;:/.*!":
            return f"<mo>{escape(token.replace('-', '−'))}</mo>"
        raise UnknownTeXError(f"formula {self.tex!r}: does not know {token!r}")

    def command(self, name: str) -> str:
        if name in GREEK:
            return f"<mi>{GREEK[name]}</mi>"
        if name in FENCES:
            return _fence(FENCES[name])
        if name in ("min", "max"):
            return f'<mo movablelimits="true" lspace="0.1em" rspace="0.17em">{name}</mo>'
        if name in OPERATORS:
            return f"<mo>{OPERATORS[name]}</mo>"
        if name in NAMES:
            return f"<mi>{name}</mi>"
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}em"></mspace>'
        if name in SIZES:
            sign = self.take()
            return _fence(FENCES.get(sign.lstrip("\\"), sign), stretch=True)
        if name == "frac":
            return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self.atom()}</msqrt>"
        if name == "hat":
            return f'<mover accent="true">{self.atom()}<mo stretchy="false">^</mo></mover>'
        if name in ("mathrm", "text", "texttt"):
            style = ' style="font-family: monospace"' if name == "texttt" else ""
            return f"<mtext{style}>{self.word()}</mtext>"
        if name == "begin":
            return self.matrix()
        raise UnknownTeXError(f"formula {self.tex!r}: does not know \\{name}")

    def word(self) -> str:
        self.expect("{")
        letters = []
        while self.peek() != "}":
            letters.append(self.take().removeprefix("\\"))
        self.take()
        return escape("".join(letters))

    def matrix(self) -> str:
        if (kind := self.word()) != "pmatrix":
            raise UnknownTeXError(f"formula {self.tex!r}: does not know the environment {kind}")
        rows = [[self.row()]]
        while (token := self.take()) != "\\end":
            if token == "&":
                rows[-1].append(self.row())
            else:
                rows.append([self.row()])
        self.word()
        cells = "".join(f"<mtr>{''.join(f'<mtd>{cell}</mtd>' for cell in row)}</mtr>" for row in rows)
        return f"<mrow>{_fence('(', stretch=True)}<mtable>{cells}</mtable>{_fence(')', stretch=True)}</mrow>"
