"""A function's text as a tree whose outside names can be renamed and printed again.

Locals and parameters keep their names. Each name from outside is a blank: `fill` says what
is printed there.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping

from kcache import bytecode
from kcache.errors import Opaque
from kcache.scope import Ref, Scope, arguments, every, function_of


class _Blanks(Scope):
    """Leaves locals alone; what comes from outside becomes `$0`, `$1`, …, which no identifier contains."""

    folded = False
    """Whether a `getattr` with a literal was read as an attribute, which holds if that name is the builtin."""

    def local(self, name: str) -> str:
        return name

    def literal_getattr(self, node: ast.Call, attribute: ast.Attribute) -> ast.expr:
        if len(node.args) == 3:
            return node
        self.folded = True
        self.ref(Ref("getattr"))
        return attribute


class Outline:
    """One function, read once and printed once.

    `refs` are its names from outside and `names` all that it binds itself, nested functions
    included. Raises `SyntaxError` where `text` is not one `def`.
    """

    def __init__(self, text: str) -> None:
        self._function = function_of(text)
        self._annotations = {a.arg: a.annotation for a in arguments(self._function.args)}
        scope = _Blanks(self._function)
        scope.root(self._function)
        self.folded = scope.folded
        self.refs: tuple[Ref, ...] = tuple(scope.refs)
        self.names = set(scope.locals)
        self.asserts = ast.Assert in scope.kinds
        self._blanks: dict[str, list[ast.Name]] = {}
        for node in every(self._function):
            if isinstance(node, ast.Name):
                if node.id.startswith("$"):
                    self._blanks.setdefault(node.id, []).append(node)
            elif isinstance(node, ast.arguments):
                self.names.update([a.arg for a in arguments(node)])

    @property
    def function(self) -> ast.FunctionDef:
        """The tree, with the line numbers of the text it was read from."""
        return self._function

    def fill(self, number: int, expression: str) -> None:
        """Print `expression`, a dotted name, for the reference `number`. Raises `Opaque` where that is assigned to."""
        for node in self._blanks.get(f"${number}", ()):
            if not isinstance(node.ctx, ast.Load):
                raise Opaque(self._function.name, self.refs[number].root, "a global that the function assigns to")
            node.id = expression

    def printed(self, name: str, annotations: Mapping[str, str], defaults: Mapping[str, str]) -> str:
        """The function under `name`, without comments and docstrings.

        `annotations` and `defaults` hold expressions by parameter; a parameter that is in
        neither the live signature nor `annotations` keeps the annotation of the text.
        """
        function = self._function
        function.name = name
        for argument in arguments(function.args):
            if argument.arg in annotations:
                text = annotations[argument.arg]
                argument.annotation = ast.Name(text) if text else None
            elif argument.arg in self._annotations:
                argument.annotation = self._annotations[argument.arg]
        positional = [*function.args.posonlyargs, *function.args.args]
        given = [ast.Name(defaults[a.arg]) for a in positional if a.arg in defaults]
        function.args.defaults = list(given)
        function.args.kw_defaults = [
            ast.Name(defaults[a.arg]) if a.arg in defaults else None for a in function.args.kwonlyargs
        ]
        try:
            return ast.unparse(function)
        except (ValueError, RecursionError) as error:
            raise Opaque(name, name, f"its text cannot be printed: {error}") from error


def agrees(text: str, fn: types.FunctionType) -> bool:
    """Whether `text`, compiled, is the code that `fn` runs: the file may have been edited since it was loaded."""
    function = function_of(text)
    function.decorator_list = []
    around = function_of(f"def around({', '.join(fn.__code__.co_freevars)}): pass")
    around.body = [function]
    for argument in arguments(function.args):
        argument.annotation = None
    function.args.defaults = [ast.Constant(None) for _ in function.args.defaults]
    function.args.kw_defaults = [ast.Constant(None) if d else None for d in function.args.kw_defaults]
    function.returns = None
    module = ast.fix_missing_locations(ast.Module([around], []))
    code = compile(module, "<text>", "exec", dont_inherit=True)
    outer = next(c for c in code.co_consts if isinstance(c, types.CodeType))
    inner = next(c for c in outer.co_consts if isinstance(c, types.CodeType))
    return bytecode.analyse(inner) == bytecode.analyse(fn.__code__)
