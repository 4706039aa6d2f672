"""Random kernels: helpers, constants, constexpr functions, defaults and closures over several modules."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.drawn import Draft, Program, Thing

HEAD = "import collections, enum, types\nimport triton\nimport triton.language as tl\n"
NUMBERS = ("2", "3", "2.0", "0.5", "-1.5", "7")
UNARY = ("tl.sin", "tl.cos", "tl.exp", "tl.abs", "-")
BINARY = ("+", "-", "*")
DTYPES = ("tl.float32", "tl.float16", "tl.int32")


class Kernels(Draft):
    """Draws one program whose kernel is `kern` in `kern.py`."""

    def scalar(self, module: int) -> str:
        """A number known at compile time."""
        known = [t for t in self.things if t.module <= module and t in self.scalars]
        if known and self.pick((True, True, True, False)):
            return self.reach(self.pick(known), module)
        return self.meaning(*NUMBERS)

    def tensor(self, module: int, leaf: str, depth: int = 2) -> str:
        """A tensor made from `leaf`."""
        way = self.pick(("helper", "unary", "binary", "scaled", "helper", "cast", "where", "alias")) if depth else "leaf"
        known = [t for t in self.things if t.module <= module and t in self.helpers]
        if way == "helper" and known:
            helper = self.pick(known)
            return self.reach(helper, module).replace("@", self.tensor(module, leaf, depth - 1))
        if way == "leaf" or way == "helper":
            return leaf
        inner = self.tensor(module, leaf, depth - 1)
        if way == "unary":
            return f"{self.meaning(*UNARY)}({inner}.to(tl.float32))"
        if way == "binary":
            return f"({inner} {self.meaning(*BINARY)} {self.tensor(module, leaf, depth - 1)})"
        if way == "scaled":
            return f"({inner} {self.meaning(*BINARY)} {self.scalar(module)})"
        if way == "cast":
            return f"({inner}).to({self.meaning(*DTYPES)})"
        if way == "where":
            return f"tl.where({leaf} {self.meaning('<', '<=', '>')} {self.scalar(module)}, {inner}, {leaf})"
        name = self.name("op")
        self.modules[module].lines.append(f"{name} = {self.meaning('tl.sin', 'tl.cos', 'tl.exp')}")
        return f"{name}({inner}.to(tl.float32))"

    def body(self, module: int, leaf: str) -> tuple[str, str]:
        """Statements, and the expression that they lead to."""
        lines = self.remark()
        for _ in range(self.draw(st.integers(0, 2))):
            name = self.name("local")
            value = self.tensor(module, leaf)
            if self.chance():
                lines += f"    {name} = {leaf}\n    if BLOCK {self.meaning('>', '<', '==')} 16:\n        {name} = {value}\n"
            elif self.chance():
                lines += f"    {name} = {leaf}\n    for _ in tl.static_range({self.meaning('1', '2')}):\n        {name} += {value}\n"
            else:
                lines += f"    {name} = {value}\n"
            leaf = name
            lines += self.remark()
        return lines, self.tensor(module, leaf)

    def add_constant(self, module: int) -> None:
        """A constant somewhere that Triton can read it from inside a kernel, or the linker can."""
        name, value = self.name("CONST"), self.scalar(module)
        way = self.pick(("constexpr", "class", "enum", "named tuple", "namespace", "table", "function"))
        if way == "function":
            text = f"@triton.constexpr_function\ndef {name}(a={value}):\n{self.remark()}    return a + {self.meaning('1', '2')}\n"
            self.scalars.append(self.define(module, name, text, lambda n: f"{n}()"))
            return
        text, use = {
            "constexpr": (f"{name} = tl.constexpr({value})", lambda n: n),
            "class": (f"class {name}:\n    K = tl.constexpr({value})", lambda n: f"{n}.K"),
            "enum": (f"class {name}(enum.Enum):\n    K = {value}", lambda n: f"{n}.K.value"),
            "named tuple": (f"{name} = collections.namedtuple('T', 'a b')(1, {value})", lambda n: f"{n}.b"),
            "namespace": (f"{name} = types.SimpleNamespace(a={value})", lambda n: f"{n}.a"),
            "table": (f"{name} = tl.constexpr((1, {value}))", lambda n: f"{n}[1]"),
        }[way]  # fmt: skip
        self.scalars.append(self.define(module, name, text.replace("constexpr(tl.constexpr", "constexpr(("), use))

    def add_helper(self, module: int) -> None:
        """A jitted function."""
        name = self.name("helper")
        way = self.pick(("plain", "default", "closure", "static method", "argument"))
        known = [t for t in self.things if t in self.helpers and t.module <= module]
        scalar = self.scalar(module) if way in ("default", "closure") else ""
        lines, value = self.body(module, "x")
        lines = lines.replace("BLOCK", "16") + f"    return {value}\n"
        noinline = self.meaning("", "", "(noinline=True)") if way == "plain" else ""
        text = f"@triton.jit{noinline}\ndef {name}(x):\n{lines}"
        use = lambda n: f"{n}(@)"  # noqa: E731
        if way == "default":
            text = text.replace("(x):", f"(x, k: tl.constexpr = {scalar}):", 1).replace("return ", "return k * ")
        elif way == "closure":
            inner = "".join(f"    {line}\n" for line in text.replace("return ", "return free * ").splitlines())
            text = f"def make_{name}(free):\n{inner}    return {name}\n{name} = make_{name}(tl.constexpr({scalar}))\n"
        elif way == "static method":
            inner = "".join(f"    {line}\n" for line in text.replace(name, "f").splitlines())
            text, use = f"class {name}:\n    @staticmethod\n{inner}", lambda n: f"{n}.f(@)"
        elif way == "argument" and known:
            given = self.pick(known)
            handed = self.reach(given, module).partition("(")[0]
            text = f"@triton.jit\ndef {name}(x, g: tl.constexpr = {handed}):\n    return g(x)\n"
        self.helpers.append(self.define(module, name, text, use))

    def draft(self) -> Program:
        """The whole program."""
        self.scalars: list[Thing] = []
        self.helpers: list[Thing] = []
        last = len(self.modules) - 1
        for _ in range(self.draw(st.integers(1, 6))):
            module = self.draw(st.integers(0, last))
            self.pick((self.add_constant, self.add_helper))(module)
        lines, value = self.body(last, "x")
        decorator = self.meaning("@triton.jit", "@triton.jit(do_not_specialize=['n'])", "@triton.jit(debug=True)")
        self.modules[last].lines.append(
            f"{decorator}\ndef kern(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr, SC: tl.constexpr = {self.scalar(last)}):\n"
            f"    offs = tl.program_id({self.meaning('0', '1')}) * BLOCK + tl.arange(0, BLOCK)\n"
            f"    x = tl.load(x_ptr + offs, mask=offs < n) * SC\n{lines}"
            f"    tl.store(o_ptr + offs, ({value}).to(tl.float32), mask=offs < n)\n"
        )
        return self.program(HEAD, "kern")


@st.composite
def programs(draw: Any) -> Program:
    """Programs of one to three modules whose kernel is `kern:kern`."""
    return Kernels(draw, draw(st.integers(1, 3))).draft()
