"""Canonical forms of texts and of code objects."""

from __future__ import annotations

import argparse
import difflib
import statistics
import sys
import types
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import pytest

from kcache import bytecode, source
from kcache.digest import Digest
from kcache.source import Ref, analyse


def kernel(text: str) -> source.Text:
    return analyse(dedent(text))


def test_canonical_form() -> None:
    found = kernel('''
        def add(x_ptr, n, BLOCK: tl.constexpr = 4) -> None:
            """Adds."""
            offs = tl.arange(0, BLOCK)  # offsets
            x = (tl.load(x_ptr + offs,
                         mask=offs < n))
            pkg.mod.store(x_ptr + offs, x)
    ''')
    assert found.name == "add"
    assert found.body.splitlines() == [
        "def _(x_ptr, n, BLOCK):",
        "    %0 = $0(0, BLOCK)",
        "    %1 = $1(x_ptr + %0, mask=%0 < n)",
        "    $2(x_ptr + %0, %1)",
    ]
    assert found.refs == (Ref("tl", ("arange",)), Ref("tl", ("load",)), Ref("pkg", ("mod", "store")))
    assert not found.asserts


def roots(text: str) -> set[str]:
    return {r.root for r in kernel(text).refs if not r.soft}


def soft(text: str) -> set[str]:
    return {r.root for r in kernel(text).refs if r.soft}


@pytest.mark.parametrize(
    ("text", "free", "unsure"),
    [
        ("def f(a):\n    return a + b", {"b"}, set()),
        ("def f(a):\n    b = a\n    return b", set(), set()),
        ("def f(a):\n    c = b\n    b = a\n    return b", set(), {"b"}),
        ("def f(a):\n    if a:\n        b = 1\n    return b", set(), {"b"}),
        ("def f(a):\n    if a:\n        b = 1\n    else:\n        b = 2\n    return b", set(), set()),
        ("def f(a):\n    for b in range(a):\n        c = b\n    return c", {"range"}, {"c"}),
        ("def f(a):\n    while a:\n        b = 1\n    return b", set(), {"b"}),
        ("def f(a):\n    b += 1", set(), {"b"}),
        ("def f(a):\n    return [b for b in a if b]", set(), set()),
        ("def f(a):\n    return [b + c for b in a]", {"c"}, set()),
        ("def f(a):\n    x = [b for b in a]\n    return b", set(), {"b"}),
        ("def f(a):\n    return (lambda b: b + c)(a)", {"c"}, set()),
        ("def f(a):\n    g = lambda b: b\n    return b", {"b"}, set()),
        ("def f(a):\n    def g(b):\n        return b + a + c\n    return g(1)", {"c"}, set()),
        ("def f(a):\n    global b\n    b = 1\n    return b", {"b"}, set()),
        ("def f(a):\n    b: T = 1\n    return b", {"T"}, set()),
        ("def f(a):\n    return f'{b}{a}'", {"b"}, set()),
        ("def f(a, *b, c, **d):\n    return (a, b, c, d)", set(), set()),
        ("def f(a):\n    (b, *c), d = a\n    return b, c, d", set(), set()),
        ("def f(a):\n    with b as c:\n        return c", {"b"}, {"c"}),
        ("def f(a):\n    a.b = c.d\n    return a", {"c"}, set()),
    ],
)
def test_free_names(text: str, free: set[str], unsure: set[str]) -> None:
    assert roots(text) == free
    assert soft(text) == unsure


def test_locals_are_numbered_consistently() -> None:
    text = "def f(a):\n    {0} = a\n    {1} = {0}\n    return {0} - {1}"
    assert kernel(text.format("x", "y")).body == kernel(text.format("u", "v")).body == kernel(text.format("y", "x")).body
    assert kernel(text.format("x", "y")).body != kernel("def f(a):\n    x = a\n    y = x\n    return y - x").body


def test_assertions_are_noted() -> None:
    assert kernel("def f(a):\n    assert a").asserts


def test_not_a_function() -> None:
    for text in ("x = 1", "def f(a): return a\ndef g(a): return a", "def f("):
        with pytest.raises(SyntaxError):
            analyse(text)


class Shelf:
    """A memo in a dictionary."""

    def __init__(self) -> None:
        self.data: dict[Digest, bytes] = {}
        self.hits = 0

    def get(self, digest: Digest) -> bytes | None:
        self.hits += digest in self.data
        return self.data.get(digest)

    def put(self, digest: Digest, data: bytes) -> None:
        self.data[digest] = data


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    shelf = Shelf()
    monkeypatch.setattr(source, "MEMO", shelf)
    monkeypatch.setattr(source, "_known", {})
    yield shelf


def test_memo_between_processes(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(a):\n    return b.c + a"
    first = analyse(text)
    source._known.clear()
    monkeypatch.setattr(source, "_analyse", None)
    assert analyse(text) == first and shelf.hits == 1
    assert isinstance(analyse(text).refs[0], Ref)


def test_damaged_memo_is_ignored(shelf: Shelf) -> None:
    first = analyse("def f(a):\n    return b")
    for rubbish in (b"", b"\xff", b"[]", b"{}", b"[1, 2"):
        shelf.data = dict.fromkeys(shelf.data, rubbish)
        source._known.clear()
        assert analyse("def f(a):\n    return b") == first


def code(text: str, name: str = "fn") -> types.CodeType:
    space: dict[str, Any] = {}
    exec(compile(dedent(text), "<here>", "exec"), space)
    found: Callable[..., Any] = space[name]
    return found.__code__  # type: ignore[attr-defined, no-any-return]


def body(text: str) -> str:
    return bytecode.analyse(code(text)).body


SAME = {
    "docstring": ("def fn(x):\n    return x", "def fn(x):\n    'doc'\n    return x"),
    "lines": ("def fn(x):\n    y = x\n    return y", "\n\ndef fn(x):\n\n    # c\n    y = (\n  x)\n\n    return y"),
    "local": ("def fn(x):\n    y = x\n    return y", "def fn(x):\n    z = x\n    return z"),
    "global": ("def fn(x):\n    return a(x)", "def fn(x):\n    return b(x)"),
    "name": ("def fn(x):\n    def g():\n        return x\n    return g", "def fn(x):\n    def h():\n        return x\n    return h"),
    "cells": ("def fn(x):\n    a, b = x\n    return lambda: a + b", "def fn(x):\n    z, b = x\n    return lambda: z + b"),
    "pass": ("def fn(x):\n    if x:\n        pass\n    return x", "def fn(x):\n    if x:\n\n\n        pass\n    return x"),
    "loop": ("def fn(x):\n    for y in x:\n        if y: continue\n        a()", "def fn(x):\n    for y in x:\n        if y:\n            continue\n        a()"),
    "try": ("def fn(x):\n    try:\n        a()\n    except E:\n        b()", "def fn(x):\n    try:\n        # c\n        a()\n\n    except E:\n        b()"),
}
if sys.version_info[:2] != (3, 12):  # which turns jumps around as well
    SAME["comprehension"] = (
        "def fn(x):\n    return [y for y in x if y.a and y.b == 1 and y.c == 1]",
        "def fn(x):\n    return [\n        y for y in x\n        if y.a\n        and y.b == 1\n        and y.c == 1\n    ]",
    )
DIFFERENT = {
    "constant": ("def fn(x):\n    return x + 1", "def fn(x):\n    return x + 2"),
    "constant's type": ("def fn(x):\n    return x + 1", "def fn(x):\n    return x + True"),
    "operator": ("def fn(x):\n    return x + 1", "def fn(x):\n    return x - 1"),
    "attribute": ("def fn(x):\n    return x.a", "def fn(x):\n    return x.b"),
    "compare": ("def fn(x):\n    return x < 1", "def fn(x):\n    return x <= 1"),
    "keyword": ("def fn(x):\n    return x(a=1)", "def fn(x):\n    return x(b=1)"),
    "parameter": ("def fn(x):\n    return x", "def fn(y):\n    return y"),
    "star": ("def fn(*x):\n    return x", "def fn(**x):\n    return x"),
    "jump": ("def fn(x):\n    while x:\n        x.a()\n    x.b()", "def fn(x):\n    if x:\n        x.a()\n    x.b()"),
    "order": ("def fn(x):\n    a()\n    b()\n    a()", "def fn(x):\n    a()\n    a()\n    b()"),
    "which local": ("def fn(x):\n    a, b = x\n    return a", "def fn(x):\n    a, b = x\n    return b"),
    "which cell": ("def fn(x):\n    a, b = x\n    return lambda: a", "def fn(x):\n    a, b = x\n    return lambda: b"),
    "nonlocal": ("def fn(x):\n    a = x\n    def g():\n        nonlocal a\n        a = 1\n    g()\n    return a",
                 "def fn(x):\n    a = x\n    def g():\n        a = 1\n        return lambda: a\n    g()\n    return lambda: a"),
    "nested": ("def fn(x):\n    return lambda: 1", "def fn(x):\n    return lambda: 2"),
    "try": ("def fn(x):\n    a()\n    try:\n        b()\n    except E:\n        c()", "def fn(x):\n    try:\n        a()\n        b()\n    except E:\n        c()"),
    "membership": ("def fn(x):\n    return x in {1, 2}", "def fn(x):\n    return x in {1, 3}"),
    "format": ("def fn(x):\n    return f'{x}'", "def fn(x):\n    return f'{x!r}'"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_neutral_for_code(name: str) -> None:
    first, second = SAME[name]
    assert body(first) == body(second)


@pytest.mark.parametrize("module", [argparse, difflib, statistics])
def test_every_function_has_a_listing(module: types.ModuleType) -> None:
    """Python fuses instructions differently in each version; none of them may be beyond the listing."""
    with open(module.__file__ or "") as file:
        todo = [compile(file.read(), "<here>", "exec")]
    while todo:
        inner = [c for c in todo.pop().co_consts if isinstance(c, types.CodeType)]
        todo += inner
        assert all(bytecode.analyse(c).body for c in inner)


@pytest.mark.parametrize("name", DIFFERENT)
def test_semantic_for_code(name: str) -> None:
    first, second = DIFFERENT[name]
    assert body(first) != body(second)


@pytest.mark.parametrize(
    ("text", "refs"),
    [
        ("def fn(x):\n    return a.b.c(x.d)", [("a", ("b", "c"))]),
        ("def fn(x):\n    import a.b as m\n    return m.c(x)", [("import a.b", ("c",))]),
        ("def fn(x):\n    import a.b\n    return a.b.c(x)", [("import a", ("b", "c"))]),
        ("def fn(x):\n    from a.b import c as d\n    return d.e(x)", [("import a.b", ("c", "e"))]),
        ("def fn(x):\n    from . import c\n    return x + c.e", [("import .", ("c", "e"))]),
        ("def fn(x):\n    import a\n    return lambda: a.b", [("import a", ("b",))]),
        ("def fn(x):\n    import a\n    a = 1\n    return a", [("import a", ())]),
        ("def fn(x):\n    return getattr(a.b, 'c')", [("getattr", ()), ("a", ("b", "c"))]),
        ("def fn(x):\n    return [y + a for y in x]", [("a", ())]),
        ("def fn(x):\n    class C(a.B):\n        c = b\n        d = c\n    return C", [("a", ("B",)), ("b", ())]),
        ("def fn(x):\n    x, y = x\n    return x + y + a.b + y", [("a", ("b",))]),
    ],
)
def test_references_of_code(text: str, refs: list[tuple[str, tuple[str, ...]]]) -> None:
    found = {(r.root, r.attrs) for r in bytecode.analyse(code(text)).refs if not r.soft}
    assert found == set(refs)


def test_free_variables_of_code() -> None:
    made = code("def fn(k, m):\n    def g(x):\n        return (lambda: x + k)() + m.n\n    return g")
    inner = next(c for c in made.co_consts if isinstance(c, types.CodeType))
    assert {(r.root, r.attrs) for r in bytecode.analyse(inner).refs} == {("k", ()), ("m", ("n",))}
