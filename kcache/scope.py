"""The scopes of one function's text: which names are its own and which come from outside.

`Scope` rewrites the tree of one function in place, in order of evaluation. What becomes of
a local name and of a name from outside is up to two methods, so that the form that is
hashed and the text that is printed for a compiler read names alike.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, NamedTuple


class Ref(NamedTuple):
    """An attribute chain whose root is not a parameter.

    A `soft` one has the name of a local that may be unassigned where it is read: Triton then
    takes the global of that name, if there is one.
    """

    root: str
    attrs: tuple[str, ...] = ()
    soft: bool = False


def function_of(text: str) -> ast.FunctionDef:
    """The function whose text this is. Raises `SyntaxError` if it is not one `def`."""
    tree = ast.parse(text)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise SyntaxError("not the text of one function")
    return tree.body[0]


Known = set[str]
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Scope:
    """Rewrites one function in place, in order of evaluation.

    `known` is the set of names that are surely assigned at this point. All locals share one
    numbering, nested scopes included: two variables of one name get one number, which
    renames them together and never confuses two names.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self.name = function.name
        self.parameters: set[str] = set()
        self.numbers: dict[str, str] = {}
        self.refs: dict[Ref, int] = {}
        nodes = [n for statement in function.body for n in every(statement)]
        self.kinds = set(map(type, nodes))
        declared = (
            {x for n in nodes if isinstance(n, ast.Global) for x in n.names} if ast.Global in self.kinds else set()
        )
        self.locals = {name for n in nodes if n.__class__ in _BINDERS for name in _bound(n)} - declared

    def root(self, function: ast.FunctionDef) -> None:
        """Rewrite the function given at first; drops its decorators, annotations and default values."""
        self.parameters = set(parameters(function.args))
        function.name = "_"
        function.decorator_list = []
        function.returns = None
        for argument in arguments(function.args):
            argument.annotation = None
        function.args.defaults = []
        function.args.kw_defaults = [None for _ in function.args.kwonlyargs]
        self.statements(function, "body", set(self.parameters))

    def statements(self, holder: Any, field: str, known: Known) -> Known:
        kept = [s for s in getattr(holder, field) if not _is_text(s)]
        for statement in kept:
            known = self.statement(statement, known)
        if not kept and getattr(holder, field):
            kept = [ast.Pass()]
        setattr(holder, field, kept)
        return known

    def statement(self, s: ast.stmt, known: Known) -> Known:
        if isinstance(s, ast.If):
            s.test = self.expression(s.test, known)
            then = self.statements(s, "body", set(known))
            return then & self.statements(s, "orelse", set(known))
        if isinstance(s, (ast.For, ast.AsyncFor)):
            s.iter = self.expression(s.iter, known)
            inner = known | _stored([s.target])
            s.target = self.expression(s.target, inner)
            self.statements(s, "body", inner)
            self.statements(s, "orelse", set(known))
            return known
        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)):
            after = known | {s.name}
            self.function(s, known)
            s.name = self.local(s.name)
            return after
        if isinstance(s, ast.ClassDef):
            self.generic(s, known)
            return known
        return self.simple(s, known)

    def simple(self, s: ast.stmt, known: Known) -> Known:
        if isinstance(s, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            if s.value is not None:
                s.value = self.expression(s.value, known)
            if isinstance(s, ast.AnnAssign):
                s.annotation = self.expression(s.annotation, known)
            if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name):
                self.soft(s.target.id, known)
            after = known | _stored(s.targets if isinstance(s, ast.Assign) else [s.target])
            if isinstance(s, ast.Assign):
                s.targets = [self.expression(t, after) for t in s.targets]
            else:
                s.target = self.expression(s.target, after)
            return after
        if isinstance(s, ast.Global):
            return known
        self.generic(s, set(known))
        return known

    def generic(self, node: ast.AST, known: Known) -> None:
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                if value and isinstance(value[0], ast.stmt):
                    known = self.statements(node, field, known)
                else:
                    value[:] = [self.expression(v, known) if isinstance(v, ast.AST) else v for v in value]
            elif isinstance(value, ast.AST):
                setattr(node, field, self.expression(value, known))

    def function(self, node: Any, known: Known) -> None:
        """A nested function: it may run after any statement of this one, with any local assigned."""
        if not isinstance(node, ast.Lambda):
            node.decorator_list = [self.expression(d, known) for d in node.decorator_list]
        self.generic(node.args, known)
        inner = known | self.locals | set(parameters(node.args))
        outer, self.parameters = self.parameters, self.parameters | set(parameters(node.args))
        if isinstance(node, ast.Lambda):
            node.body = self.expression(node.body, inner)
        else:
            self.statements(node, "body", inner)
        self.parameters = outer

    def expression(self, node: Any, known: Known) -> Any:
        cls = node.__class__
        if cls is ast.Name:
            return self.read(node, known)
        if cls is ast.Attribute:
            return self.chain(node, known)
        if cls is ast.Constant:
            node.kind = None
            return node
        if cls is ast.Call and (attribute := _literal_getattr(node, self.locals | self.parameters)) is not None:
            node = self.literal_getattr(node, attribute)
            if isinstance(node, ast.Attribute):
                return self.chain(node, known)
        if cls in _COMPREHENSIONS:
            return self.comprehension(node, known)
        if cls is ast.Lambda:
            self.function(node, known)
            return node
        if node._fields:
            self.generic(node, known)
        return node

    def comprehension(self, node: Any, known: Known) -> Any:
        inner = set(known)
        for generator in node.generators:
            generator.iter = self.expression(generator.iter, inner)
            inner |= _stored([generator.target])
            generator.target = self.expression(generator.target, inner)
            generator.ifs = [self.expression(x, inner) for x in generator.ifs]
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.expression(getattr(node, field), inner))
        return node

    def read(self, node: ast.Name, known: Known) -> ast.Name:
        name = node.id
        if name in self.parameters:
            return node
        if name in self.locals:
            if not isinstance(node.ctx, ast.Store):
                self.soft(name, known)
            node.id = self.local(name)
            return node
        node.id = self.ref(Ref(name))
        return node

    def chain(self, node: ast.Attribute, known: Known) -> Any:
        attrs, base = [node.attr], node.value
        while isinstance(base, ast.Attribute):
            attrs.append(base.attr)
            base = base.value
        if isinstance(base, ast.Name) and base.id in self.locals:
            self.soft(base.id, known, tuple(reversed(attrs)))
            base.id = self.local(base.id)
            return node
        outside = isinstance(base, ast.Name) and base.id not in self.parameters
        if outside and isinstance(node.ctx, ast.Load):
            return ast.Name(self.ref(Ref(base.id, tuple(reversed(attrs)))), ast.Load())  # type: ignore[attr-defined]
        node.value = self.expression(node.value, known)
        return node

    def soft(self, name: str, known: Known, attrs: tuple[str, ...] = ()) -> None:
        if name not in known and name not in self.parameters:
            self.ref(Ref(name, attrs, True))

    def literal_getattr(self, node: ast.Call, attribute: ast.Attribute) -> ast.expr:
        """What stands for `getattr(pkg.mod, "name")`; the call's own name stays, since a program may rebind it."""
        node.args[:2] = [attribute]
        return node

    def local(self, name: str) -> str:
        """What stands for a local name."""
        return self.numbers.setdefault(name, f"%{len(self.numbers)}")

    def ref(self, ref: Ref) -> str:
        """What stands for a name from outside. Called for soft references too, whose result is not used."""
        return f"${self.refs.setdefault(ref, len(self.refs))}"


def _is_text(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)


def arguments(a: ast.arguments) -> list[ast.arg]:
    """All parameters, `*args` and `**kwargs` last."""
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *[x for x in (a.vararg, a.kwarg) if x is not None]]


def parameters(a: ast.arguments) -> Iterable[str]:
    return (x.arg for x in arguments(a))


def every(top: ast.AST) -> Iterable[ast.AST]:
    """Like `ast.walk`, in another order and without operators and contexts, which have no fields."""
    todo = [top]
    while todo:
        node = todo.pop()
        yield node
        for field in node._fields:
            value = getattr(node, field, None)
            if value.__class__ is list:
                todo.extend([v for v in value if isinstance(v, ast.AST)])
            elif isinstance(value, ast.AST) and value._fields:
                todo.append(value)


def _bound(n: ast.AST) -> Iterable[str]:
    """Names that `n` itself binds."""
    if isinstance(n, ast.Name):
        return () if isinstance(n.ctx, ast.Load) else (n.id,)
    if isinstance(n, (ast.Import, ast.ImportFrom)):
        return [(a.asname or a.name).partition(".")[0] for a in n.names]
    name = getattr(n, "name", None)
    return (name,) if isinstance(name, str) else ()


_BINDERS = frozenset({ast.Name, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.Import,
                      ast.ImportFrom, ast.MatchAs, ast.MatchStar})  # fmt: skip


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    return {name for top in nodes for n in every(top) if n.__class__ in _BINDERS for name in _bound(n)}


def _literal_getattr(node: ast.Call, bound: set[str]) -> ast.Attribute | None:
    """The attribute that `getattr(pkg.mod, "name")` reads from something outside, so that the chain is followed."""
    args = node.args
    if not isinstance(node.func, ast.Name) or node.func.id != "getattr" or "getattr" in bound or node.keywords:
        return None
    if len(args) not in (2, 3) or not isinstance(args[1], ast.Constant) or not isinstance(args[1].value, str):
        return None
    base = args[0]
    while isinstance(base, ast.Attribute):
        base = base.value
    if not isinstance(base, ast.Name) or base.id in bound:
        return None
    return ast.Attribute(args[0], args[1].value, ast.Load())
