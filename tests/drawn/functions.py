"""Random Python functions of numbers: helpers, constants, methods and closures over several modules.

The names of classes stay, since instances show them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.drawn import Draft, Program

HEAD = "import collections, dataclasses, enum, functools, operator, types\n"
NUMBERS = ("2", "3", "5", "-7", "True", "2.5")
BINARY = ("+", "-", "*")


class Functions(Draft):
    """Draws one program whose function is `fn` in `mod.py`."""

    def value(self, module: int, leaf: str, depth: int = 2) -> str:
        """An expression of `leaf`."""
        known = [t for t in self.things if t.module <= module]
        way = self.pick(("thing", "thing", "number", "binary", "nested", "choice", "tuple")) if depth else "leaf"
        if way == "thing" and known:
            return self.reach(self.pick(known), module).replace("@", self.value(module, leaf, depth - 1))
        if way in ("leaf", "thing"):
            return leaf
        inner = self.value(module, leaf, depth - 1)
        if way == "number":
            return f"({inner} {self.meaning(*BINARY)} {self.meaning(*NUMBERS)})"
        if way == "binary":
            return f"({inner} {self.meaning(*BINARY)} {self.value(module, leaf, depth - 1)})"
        if way == "choice":
            return f"({inner} if {leaf} {self.meaning('<', '<=', '==')} {self.meaning('0', '1')} else {leaf})"
        if way == "tuple":
            return f"({inner}, {self.value(module, leaf, depth - 1)})[{self.meaning('0', '1', '-1')}]"
        name = self.name("i")
        return self.pick((
            f"sum([{name} {self.meaning(*BINARY)} {inner} for {name} in range({self.meaning('2', '3')})])",
            f"(lambda given: {inner} + given)({self.meaning(*NUMBERS)})",
            f"max({inner}, {self.meaning(*NUMBERS)})",
        ))  # fmt: skip

    def body(self, module: int, leaf: str) -> str:
        """Statements that end in a return."""
        lines = self.remark()
        for _ in range(self.draw(st.integers(0, 2))):
            name, value = self.name("local"), self.value(module, leaf)
            lines += self.pick((
                f"    {name} = {value}\n",
                f"    {name} = {leaf}\n    for _ in range({self.meaning('1', '2')}):\n        {name} += {value}\n",
                f"    try:\n        {name} = {value} // {leaf}\n    except ZeroDivisionError:\n        {name} = {self.meaning(*NUMBERS)}\n",
                f"    {name} = {leaf}\n    while {name} < {self.meaning('1', '2')}:\n        {name} += 1\n",
                f"    def inner_{name}():\n        return {value}\n    {name} = inner_{name}()\n",
                f"    with contextlib.nullcontext({value}) as {name}:\n        pass\n",
            ))  # fmt: skip
            leaf = name
            lines += self.remark()
        return lines + f"    return {self.value(module, leaf)}\n"

    def add_constant(self, module: int) -> None:
        """A number held in one of the ways that Python has."""
        name, value, cls = self.name("CONST"), self.meaning(*NUMBERS), f"Class_{len(self.blanks)}"
        text, use = self.pick((
            (f"{name} = {value}", "{}"),
            (f"{name} = [1, {value}]", "{}[1]"),
            (f"{name} = {{'a': {{'b': {value}}}}}", "{}['a']['b']"),
            (f"class {name}:\n    K = {value}", "{}.K"),
            (f"class {name}(enum.Enum):\n    K = {value}", "{}.K.value"),
            (f"{name} = collections.namedtuple('T', 'a b')(1, {value})", "{}.b"),
            (f"{name} = types.SimpleNamespace(a=types.SimpleNamespace(b={value}))", "{}.a.b"),
            (f"class {cls}:\n    def __init__(self):\n        self.k = {value}\n{name} = {cls}()", "{}.k"),
            (f"@dataclasses.dataclass\nclass {cls}:\n    k: int = {value}\n{name} = {cls}()", "{}.k"),
            (f"class {cls}:\n    @property\n    def k(self):\n        return {value}\n{name} = {cls}()", "{}.k"),
            (f"class {cls}:\n    __slots__ = ('k',)\n{name} = {cls}()\n{name}.k = {value}", "{}.k"),
            (f"{name} = (lambda: {value})()", "{}"),
        ))  # fmt: skip
        self.define(module, name, text, use.format)

    def add_function(self, module: int) -> None:
        """Something that is called with one number."""
        name, other, cls = self.name("helper"), self.meaning(*NUMBERS), f"Class_{len(self.blanks)}"
        body = self.body(module, "x")
        inner = "".join(f"    {line}\n" for line in body.splitlines())
        text, use = self.pick((
            (f"def {name}(x):\n{body}", "{}(@)"),
            (f"def {name}(x, k={other}, *, m={self.meaning(*NUMBERS)}):\n{body.replace('return ', 'return k * m + ')}", "{}(@)"),
            (f"def make_{name}(free):\n    def {name}(x):\n{inner.replace('return ', 'return free + ')}    return {name}\n{name} = make_{name}({other})\n", "{}(@)"),
            (f"@functools.lru_cache\ndef {name}(x):\n{body}", "{}(@)"),
            (f"def given_{name}(k, x):\n{body.replace('return ', 'return k + ')}{name} = functools.partial(given_{name}, {other})\n", "{}(@)"),
            (f"class {name}:\n    @staticmethod\n    def f(x):\n{inner}", "{}.f(@)"),
            (f"class {cls}:\n    K = {other}\n    @classmethod\n    def f(self, x):\n{inner.replace('return ', 'return self.K + ')}{name} = {cls}\n", "{}.f(@)"),
            (f"class {cls}:\n    def __call__(self, x):\n{inner}{name} = {cls}()\n", "{}(@)"),
            (f"class Base_{cls}:\n    def f(self, x):\n{inner}class {cls}(Base_{cls}):\n    def g(self, x):\n        return super().f(x) + {other}\n{name} = {cls}()\n", "{}.g(@)"),
            (f"def around_{name}(f):\n    @functools.wraps(f)\n    def wrapped(*args):\n        return f(*args) + {other}\n    return wrapped\n@around_{name}\ndef {name}(x):\n{body}", "{}(@)"),
            (f"def {name}(x):\n{body}{name}.factor = {other}\n", "({0}(@) + {0}.factor)"),
            (f"def each_{name}(x):\n{body.replace('return ', 'yield ')}def {name}(x):\n    return next(each_{name}(x))\n", "{}(@)"),
            (f"{name} = {{'f': lambda x: {self.value(module, 'x')}}}", "{}['f'](@)"),
        ))  # fmt: skip
        self.define(module, name, text, use.format)

    def draft(self) -> Program:
        """The whole program."""
        last = len(self.modules) - 1
        for _ in range(self.draw(st.integers(1, 6))):
            self.pick((self.add_constant, self.add_function))(self.draw(st.integers(0, last)))
        self.modules[last].lines.append(f"def fn(x):\n{self.body(last, 'x')}")
        return self.program(HEAD + "import contextlib\n", "mod")


@st.composite
def programs(draw: Any) -> Program:
    """Programs of one to three modules whose function is `mod:fn`."""
    return Functions(draw, draw(st.integers(1, 3))).draft()
