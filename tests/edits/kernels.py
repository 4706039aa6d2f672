"""Edits of kernels and of what their names mean."""

from __future__ import annotations

from tests.edits import NEUTRAL, OPAQUE, SEMANTIC, Row

HEAD = "import math\nimport torch, triton\nimport triton.language as tl\n"


def kern(value: str, pre: str = "", parameters: str = "", decorator: str = "@triton.jit", body: str = "") -> str:
    """A kernel that stores `value`."""
    extra = "".join(f"    {line}\n" for line in body.splitlines())
    return HEAD + pre + (
        f"\n{decorator}\n"
        f"def kern(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr{parameters}):\n"
        "    pid = tl.program_id(0)\n"
        "    offs = pid * BLOCK + tl.arange(0, BLOCK)\n"
        "    m = offs < n\n"
        "    x = tl.load(x_ptr + offs, mask=m)\n"
        "    y = tl.load(y_ptr + offs, mask=m)\n"
        f"{extra}"
        f"    tl.store(o_ptr + offs, {value}, mask=m)\n"
    )  # fmt: skip


ROWS: list[Row] = []
BASE = kern("x + y")


def one(name: str, kind: str, before: str, after: str) -> None:
    """A row whose only file is the kernel's."""
    ROWS.append(Row(name, kind, {"kern.py": before}, {"kern.py": after}))


def many(name: str, kind: str, before: dict[str, str | None], after: dict[str, str | None]) -> None:
    """A row of several files."""
    ROWS.append(Row(name, kind, before, after))


def atom(name: str, value: str, pre: str, old: str, new: str, **keywords: str) -> None:
    """A semantic row: `{}` in `pre` is `old`, then `new`."""
    one(name, SEMANTIC, kern(value, pre.replace("{}", old), **keywords), kern(value, pre.replace("{}", new), **keywords))


def jit(value: str, name: str = "scale", parameters: str = "x") -> str:
    """A jitted helper."""
    return f"@triton.jit\ndef {name}({parameters}):\n    return {value}\n"


# the body
one("operator", SEMANTIC, BASE, kern("x - y"))
one("operands swapped", SEMANTIC, kern("x - y"), kern("y - x"))
one("mask dropped", SEMANTIC, BASE, BASE.replace("tl.load(x_ptr + offs, mask=m)", "tl.load(x_ptr + offs)"))
one("int for float", SEMANTIC, kern("x + 1"), kern("x + 1.0"))
one("bool for int", SEMANTIC, kern("x + 1"), kern("x + True"))
one("parameter renamed", SEMANTIC, BASE, BASE.replace("n,", "count,").replace("< n", "< count"))
one("parameters swapped", SEMANTIC, BASE, BASE.replace("(x_ptr, y_ptr,", "(y_ptr, x_ptr,"))
one("kernel renamed", SEMANTIC, BASE, BASE.replace("def kern", "def kernel") + "\nkern = kernel\n")
one("string argument", SEMANTIC, kern("x.to(tl.float32, 'rtne')"), kern("x.to(tl.float32, 'rtz')"))
one("statement order", SEMANTIC, kern("x", body="x = x + 1\nx = x * 2"), kern("x", body="x = x * 2\nx = x + 1"))
one("two locals swapped at use", SEMANTIC, kern("a - b", body="a = x\nb = y"), kern("b - a", body="a = x\nb = y"))
one("branch", SEMANTIC, kern("x", body="if BLOCK > 4:\n    x = x + 1"), kern("x", body="if BLOCK >= 4:\n    x = x + 1"))
one("annotated local", SEMANTIC, kern("x + k", body="k: tl.constexpr = 1"), kern("x + k", body="k: tl.constexpr = 2"))
one("comment", NEUTRAL, BASE, BASE.replace("    m = ", "    # bounds\n    m = ").replace("< n\n", "< n  # mask\n"))
one("docstring", NEUTRAL, BASE, BASE.replace("    pid = ", '    """Adds."""\n    pid = '))
one("docstring edited", NEUTRAL, BASE.replace("    pid", '    "a"\n    pid'), BASE.replace("    pid", '    """b\n    c"""\n    pid'))
one("layout", NEUTRAL, BASE, BASE.replace("x_ptr + offs, mask=m)", "x_ptr+offs,\n        mask = m,\n    )"))
one("parentheses", NEUTRAL, BASE, kern("((x) + (y))"))
one("number respelled", NEUTRAL, kern("x + 16"), kern("x + 0x10"))
one("string respelled", NEUTRAL, kern("x.to(tl.float32, 'rtne')"), kern('x.to(tl.float32, "rt" "ne")'))
one("moved down", NEUTRAL, BASE, BASE.replace("@triton.jit", "\n\nUNRELATED = 3\n\n\n@triton.jit"))
one("local renamed", NEUTRAL, BASE, BASE.replace("offs", "idx"))
one("local renamed to a global's name", NEUTRAL, kern("x + y", "idx = 4\n"), kern("x + y", "idx = 4\n").replace("offs", "idx"))
one("unrelated global", NEUTRAL, BASE, kern("x + y", "import os\nOTHER = object()\n"))
many("file renamed", NEUTRAL, {"kern.py": "from first import kern\n", "first.py": BASE}, {"kern.py": "from second import kern\n", "first.py": None, "second.py": BASE})
one("comprehension variable renamed", NEUTRAL, kern("x + sum([i for i in C])", "C = (1, 2)\n"), kern("x + sum([j for j in C])", "C = (1, 2)\n"))
atom("comprehension over a global", "x + sum([i for i in C])", "C = tl.constexpr({})\n", "(1, 2)", "(1, 3)")
atom("global behind a branch's local", "x * k", "k = tl.constexpr({})\n", "2", "3", body="if BLOCK < 0:\n    k = 1")
atom("global before a local of its name", "x * j", "k = tl.constexpr({})\n", "2", "3", body="j = k\nk = 1")
many("module behind a branch's local", SEMANTIC, {"cfg.py": "SC = 2\n", "kern.py": kern("x * cfg.SC", "import cfg\n", body="if BLOCK < 0:\n    cfg = 1")}, {"cfg.py": "SC = 3\n"})

# helpers
atom("helper", "scale(x) + y", jit("x * {}"), "2", "3")
atom("helper of a helper", "scale(x) + y", jit("x * {}", "inner") + jit("inner(x) + 1"), "2", "3")
atom("helper's noinline", "scale(x) + y", "@triton.jit{}\ndef scale(x):\n    return x\n", "", "(noinline=True)")
atom("helper's default", "scale(x) + y", jit("x * k", parameters="x, k: tl.constexpr = {}"), "2", "3")
atom("helper's constant", "scale(x) + y", "SC = tl.constexpr({})\n" + jit("x * SC"), "2", "3")
atom("recursive helper", "scale(x, 3)", "@triton.jit\ndef scale(x, k: tl.constexpr):\n    if k == 0:\n        return x * {}\n    return scale(x, k - 1)\n", "2", "3")
atom("mutual recursion", "f(x, 3)", "@triton.jit\ndef f(x, k: tl.constexpr):\n    if k == 0:\n        return x\n    return g(x, k - 1)\n"
     "@triton.jit\ndef g(x, k: tl.constexpr):\n    return f(x * {}, k)\n", "2", "3")  # fmt: skip
atom("helper as an argument", "apply(x, scale)", jit("x * {}") + jit("g(x)", "apply", "x, g: tl.constexpr"), "2", "3")
atom("helper as a default", "apply(x)", jit("x * {}") + jit("g(x)", "apply", "x, g: tl.constexpr = scale"), "2", "3")
one("helper commented", NEUTRAL, kern("scale(x)", jit("x * 2")), kern("scale(x)", jit("x * 2").replace("    return", "    # c\n    return")))
one("helper renamed", NEUTRAL, kern("scale(x)", jit("x * 2")), kern("factor(x)", jit("x * 2", "factor")))
one("helper under an alias", NEUTRAL, kern("scale(x)", jit("x * 2")), kern("alias(x)", jit("x * 2") + "alias = scale\n"))
one("helpers' order in the file", NEUTRAL, kern("a(x) + b(y)", jit("x * 2", "a") + jit("x * 3", "b")), kern("a(x) + b(y)", jit("x * 3", "b") + jit("x * 2", "a")))
one("two helpers swapped", SEMANTIC, kern("a(x) + b(y)", jit("x * 2", "a") + jit("x * 3", "b")), kern("b(x) + a(y)", jit("x * 2", "a") + jit("x * 3", "b")))
H2, H3 = HEAD + jit("x * 2"), HEAD + jit("x * 3")
many("helper in another module", SEMANTIC, {"hlp.py": H2, "kern.py": kern("scale(x)", "from hlp import scale\n")}, {"hlp.py": H3})
many("helper by module attribute", SEMANTIC, {"hlp.py": H2, "kern.py": kern("hlp.scale(x)", "import hlp\n")}, {"hlp.py": H3})
many("helper in a package", SEMANTIC, {"pkg/__init__.py": "", "pkg/hlp.py": H2, "kern.py": kern("pkg.hlp.scale(x)", "import pkg.hlp\n")}, {"pkg/hlp.py": H3})
many("helper by literal getattr", SEMANTIC, {"hlp.py": H2, "kern.py": kern("getattr(hlp, 'scale')(x)", "import hlp\n")}, {"hlp.py": H3})
many("helper moved to another module", NEUTRAL, {"kern.py": kern("scale(x)", jit("x * 2"))}, {"hlp.py": H2, "kern.py": kern("hlp.scale(x)", "import hlp\n")})
many("same name in two modules", SEMANTIC,
     {"b.py": HEAD + jit("x * 2", "helper"), "a.py": HEAD + "from b import helper\n" + jit("helper(x)", "first"),
      "kern.py": kern("helper(x) + first(y)", "from a import first\n" + jit("x + 10", "helper"))},
     {"b.py": HEAD + jit("x * 3", "helper")})  # fmt: skip
many("same constant name in two modules", SEMANTIC,
     {"hlp.py": HEAD + "SC = tl.constexpr(2)\n" + jit("x * SC"), "kern.py": kern("scale(x) + y * SC", "from hlp import scale\nSC = tl.constexpr(5)\n")},
     {"hlp.py": HEAD + "SC = tl.constexpr(3)\n" + jit("x * SC")})  # fmt: skip
one("triton's name that is the user's", SEMANTIC, kern("tl.my_op(x)", jit("x * 2") + "tl.my_op = scale\n"), kern("tl.my_op(x)", jit("x * 3") + "tl.my_op = scale\n"))

# constants
for label, old, new in (
    ("value", "2", "3"), ("int and float", "1", "1.0"), ("int and bool", "1", "True"), ("sign of zero", "0.0", "-0.0"),
    ("nan", "0.0", "float('nan')"), ("infinity", "float('inf')", "-float('inf')"), ("small", "1e-5", "1e-6"),
    ("None", "None", "0"), ("string", "'a'", "'b'"), ("string and bytes", "'a'", "b'a'"), ("complex", "1j", "2j"),
    ("tuple", "(1, 2)", "(1, 3)"), ("tuple and list", "(1, 2)", "[1, 2]"), ("nested type", "(1, 2)", "(1, 2.0)"),
    ("one-tuple", "(1,)", "((1,),)"), ("tuple with a dtype", "(tl.float32,)", "(tl.float16,)"),
):  # fmt: skip
    atom(f"constexpr: {label}", "x * SC", "SC = tl.constexpr({})\n", old, new)
atom("constexpr or plain", "x * SC", "SC = {}\n", "1", "tl.constexpr(1)")
atom("plain global", "x * SC", "SC = {}\n", "2", "3")
atom("dict global", "x * D['a']", "D = {'a': {}}\n", "2", "3")
atom("dict order", "x * D['a']", "D = {}\n", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}")
one("set order", NEUTRAL, kern("x", "S = {'a', 'b', 'c'}\n", body="k = S"), kern("x", "S = {'c', 'b', 'a'}\n", body="k = S"))
atom("set", "x", "S = {}\n", "{'a', 'b'}", "{'a', 'c'}", body="k = S")
atom("dtype global", "x.to(DT)", "DT = {}\n", "tl.float32", "tl.int32")
atom("torch dtype", "x.to(DT)", "DT = {}\n", "torch.float32", "torch.float16")
atom("pointer type", "x.to(DT)", "DT = tl.pointer_type({})\n", "tl.float32", "tl.int32")
atom("class attribute", "x * C.SC", "class C:\n    SC = tl.constexpr({})\n", "2", "3")
atom("inherited class attribute", "x * C.SC", "class B:\n    SC = tl.constexpr({})\nclass C(B):\n    pass\n", "2", "3")
atom("enum member", "x * E.A.value", "import enum\nclass E(enum.Enum):\n    A = {}\n", "2", "3")
atom("enum member as a value", "x", "import enum\nclass E(enum.IntEnum):\n    A = {}\n", "2", "3", body="k = E.A")
atom("named tuple", "x * T.a", "import collections\nT = collections.namedtuple('T', 'a b')({}, 1)\n", "2", "3")
atom("namespace", "x * NS.a", "import types\nNS = types.SimpleNamespace(a={})\n", "2", "3")
atom("instance attribute", "x * CFG.a", "class Cfg:\n    def __init__(self):\n        self.a = {}\n        self.o = object\nCFG = Cfg()\n", "2", "3")
atom("static method", "C.f(x)", "class C:\n    @staticmethod\n    @triton.jit\n    def f(x):\n        return x * {}\n", "2", "3")
atom("builtin alias", "op(x)", "op = {}\n", "tl.sin", "tl.cos")
atom("imported builtin", "op(x)", "from triton.language import {} as op\n", "exp", "exp2")
atom("math constant", "x * PI", "from math import {} as PI\n", "pi", "e")
atom("libdevice alias", "op(x)", "from triton.language.extra import libdevice\nop = libdevice.{}\n", "tanh", "erf")
atom("builtin shadowed", "max(x, y)", "{}", "", jit("x", "max", "x, y"))
many("constant in another module", SEMANTIC, {"cfg.py": HEAD + "SC = tl.constexpr(2)\n", "kern.py": kern("x * cfg.SC", "import cfg\n")}, {"cfg.py": HEAD + "SC = tl.constexpr(3)\n"})
one("constant renamed", NEUTRAL, kern("x * SC", "SC = tl.constexpr(2)\n"), kern("x * FACTOR", "FACTOR = tl.constexpr(2)\n"))
one("constant computed", NEUTRAL, kern("x * SC", "SC = tl.constexpr(4)\n"), kern("x * SC", "SC = tl.constexpr(2 * 2)\n"))
atom("constexpr function", "x * fac(2)", "@triton.constexpr_function\ndef fac(a):\n    return a * {}\n", "1", "2")
atom("constexpr function's global", "x * fac(2)", "K = {}\n@triton.constexpr_function\ndef fac(a):\n    return a * K\n", "1", "2")
many("constexpr function calls plain Python", SEMANTIC,
     {"p.py": "def plain(a):\n    return a * 1\n", "kern.py": kern("x * fac(2)", "import p\n@triton.constexpr_function\ndef fac(a):\n    return p.plain(a)\n")},
     {"p.py": "def plain(a):\n    return a * 2\n"})  # fmt: skip
one("tensor global", OPAQUE, kern("x", "T = torch.ones(3)\n", body="k = T"), BASE)
one("module as a value", OPAQUE, kern("x", body="k = math"), BASE)

# closures, defaults
MAKE = HEAD + "def make(s):\n    SC = tl.constexpr(s)\n" + "".join(f"    {line}\n" for line in kern("x * SC").removeprefix(HEAD).splitlines()) + "    return kern\n"
one("closure constant", SEMANTIC, MAKE + "kern = make(2)\n", MAKE + "kern = make(3)\n")
one("closure before global", NEUTRAL, MAKE + "SC = 5\nkern = make(2)\n", MAKE + "SC = 6\nkern = make(2)\n")
one("made twice", NEUTRAL, MAKE + "kern = make(2)\n", MAKE + "make(3)\nkern = make(2)\n")
atom("default", "x * SC", "", "", "", parameters=", SC: tl.constexpr = 2")
ROWS.pop()
for label, old, new in (("value", "2", "3"), ("type", "1", "1.0"), ("removed", "1", "")):
    at = ", SC: tl.constexpr{}"
    spell = [f" = {v}" if v else "" for v in (old, new)]
    one(f"default: {label}", SEMANTIC, kern("x * SC", parameters=at.format(spell[0])), kern("x * SC", parameters=at.format(spell[1])))
one("default from a global", SEMANTIC, kern("x * SC", "D = 2\n", ", SC: tl.constexpr = D"), kern("x * SC", "D = 3\n", ", SC: tl.constexpr = D"))
one("annotation added", SEMANTIC, kern("x * SC", parameters=", SC=2"), kern("x * SC", parameters=", SC: tl.constexpr = 2"))
one("annotation as a string", NEUTRAL, kern("x * SC", parameters=", SC: tl.constexpr = 2"), kern("x * SC", parameters=", SC: 'tl.constexpr' = 2"))
one("dtype annotation", SEMANTIC, BASE.replace("n, B", "n: tl.int32, B"), BASE.replace("n, B", "n: tl.int64, B"))
one("foreign annotation", NEUTRAL, BASE, BASE.replace("(x_ptr,", "(x_ptr: torch.Tensor,"))
