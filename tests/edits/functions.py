"""Edits of plain Python: operator bodies, backward functions, graph passes, classes."""

from __future__ import annotations

from tests.edits import NEUTRAL, OPAQUE, SEMANTIC, Row

ROWS: list[Row] = []


def both(name: str, kind: str, before: str, after: str, **others: tuple[str, str]) -> None:
    """A row whose target is `fn` in `mod.py`; other modules as before and after."""
    old = {f"{n}.py": texts[0] for n, texts in others.items()}
    new = {f"{n}.py": texts[1] for n, texts in others.items()}
    ROWS.append(Row(name, kind, {"mod.py": HEAD + before, **old}, {"mod.py": HEAD + after, **new}, "mod:fn"))


def atom(name: str, text: str, old: str = "1", new: str = "2", **others: str) -> None:
    """A semantic row: `<>` in all files is `old`, then `new`."""
    both(f"function: {name}", SEMANTIC, text.replace("<>", old), text.replace("<>", new),
         **{n: (t.replace("<>", old), t.replace("<>", new)) for n, t in others.items()})  # fmt: skip


def same(name: str, before: str, after: str) -> None:
    """A neutral row."""
    both(f"function: {name}", NEUTRAL, before, after)


def opaque(name: str, text: str) -> None:
    """A row that cannot be followed."""
    both(f"function: {name}", OPAQUE, text, text)


HEAD = "import functools, os, sys, time\nimport torch\n"
FN = "def fn(x, y):\n    z = x + 1\n    return z * y\n"

atom("constant", "def fn(x):\n    return x + <>\n")
atom("constant's type", "def fn(x):\n    return x + <>\n", "1", "1.0")
atom("global", "K = <>\ndef fn(x):\n    return x + K\n")
atom("global list", "K = [1, <>]\ndef fn(x):\n    return x + K[0]\n")
atom("helper", "def g(x):\n    return x + <>\ndef fn(x):\n    return g(x)\n")
atom("helper in a dictionary", "def g(x):\n    return x + <>\nT = {'g': g}\ndef fn(x):\n    return T['g'](x)\n")
atom("nested function's global", "K = <>\ndef fn(x):\n    def h(y):\n        return y + K\n    return h(x)\n")
atom("nested function's free variable", "def make(k):\n    def fn(x):\n        return (lambda: x + k)()\n    return fn\nfn = make(<>)\n")
atom("lambda", "fn = lambda x: x + <>\n")
atom("two lambdas on one line", "fn, other = (lambda x: x + <>), (lambda x: x)\n")
atom("default", "def fn(x, k=<>):\n    return x + k\n")
atom("keyword default", "def fn(x, *, k=<>):\n    return x + k\n")
atom("default function", "def g(x):\n    return <>\ndef fn(x, k=g):\n    return k(x)\n")
atom("comprehension", "K = <>\ndef fn(x):\n    return [a + K for a in x]\n")
atom("what a try covers", "def fn(x):\n    <>\n", "try:\n        a(x)\n        b(x)\n    except E:\n        pass", "a(x)\n    try:\n        b(x)\n    except E:\n        pass")
atom("partial", "def g(k, x):\n    return x + k\nfn = functools.partial(g, <>)\n")
atom("decorated by wraps", "def deco(f):\n    @functools.wraps(f)\n    def inner(*a):\n        return f(*a)\n    return inner\n@deco\ndef fn(x):\n    return x + <>\n")
atom("decorator's own code", "def deco(f):\n    @functools.wraps(f)\n    def inner(*a):\n        return f(*a) + <>\n    return inner\n@deco\ndef fn(x):\n    return x\n")
atom("torch's decorator", "@torch.no_grad()\ndef fn(x):\n    return x + <>\n")
atom("lru_cache", "@functools.lru_cache\ndef fn(x):\n    return x + <>\n")
atom("made by exec", "space = {}\nexec('def fn(x): return x + <>', space)\nfn = space['fn']\n")
atom("generator", "def fn(x):\n    yield x + <>\n")
atom("async", "async def fn(x):\n    return x + <>\n")
atom("torch function", "def fn(x):\n    return torch.<>(x)\n", "sin", "cos")
atom("torch alias", "op = torch.<>\ndef fn(x):\n    return op(x)\n", "sin", "cos")
atom("torch dtype", "def fn(x):\n    return x.to(torch.<>)\n", "float32", "float16")
atom("device", "D = torch.device('<>')\ndef fn(x):\n    return x.to(D)\n", "cpu", "cuda")
atom("method of an instance", "class C:\n    def f(self, x):\n        return x + <>\nc = C()\ndef fn(x):\n    return c.f(x)\n")
atom("attribute of an instance", "class C:\n    def __init__(self):\n        self.k = <>\n    def f(self, x):\n        return x + self.k\nc = C()\ndef fn(x):\n    return c.f(x)\n")
atom("bound method", "class C:\n    def f(self, x):\n        return x + <>\nfn = C().f\n")
atom("callable instance", "class C:\n    def __call__(self, x):\n        return x + <>\nfn = C()\n")
atom("base class", "class B:\n    def f(self, x):\n        return x + <>\nclass C(B):\n    pass\nfn = C().f\n")
atom("property", "class C:\n    @property\n    def k(self):\n        return <>\nc = C()\ndef fn(x):\n    return x + c.k\n")
atom("class method", "class C:\n    K = <>\n    @classmethod\n    def f(cls, x):\n        return x + cls.K\ndef fn(x):\n    return C.f(x)\n")
atom("slots", "class C:\n    __slots__ = ('k',)\n    def __init__(self):\n        self.k = <>\nc = C()\ndef fn(x):\n    return x + c.k\n")
atom("dataclass method", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    k: int = 1\n    def f(self):\n        return self.k + <>\nc = C()\ndef fn(x):\n    return x + c.f()\n")
atom("enum method", "import enum\nclass E(enum.Enum):\n    A = 1\n    def f(self):\n        return <>\ndef fn(x):\n    return x + E.A.f()\n")
atom("autograd function", "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n    @staticmethod\n"
     "    def backward(ctx, g):\n        return g * <>\ndef fn(x):\n    return F.apply(x)\n")  # fmt: skip
atom("a class", "class fn:\n    def f(self, x):\n        return x + <>\n")
atom("super", "class B:\n    def f(self):\n        return <>\nclass C(B):\n    def f(self):\n        return super().f()\nfn = C().f\n")
atom("import in the body", "def fn(x):\n    import oth\n    return oth.g(x)\nimport oth\n", oth="def g(x):\n    return x + <>\n")
atom("import from in the body", "def fn(x):\n    from oth import g as h\n    return h(x)\nimport oth\n", oth="def g(x):\n    return x + <>\n")
atom("dotted import in the body", "def fn(x):\n    import torch.nn.functional as F\n    return F.<>(x)\n", "relu", "gelu")
atom("module attribute", "import oth\ndef fn(x):\n    return x + oth.K\n", oth="K = <>\n")
atom("nested class", "def fn(x):\n    class C:\n        k = <>\n    return x + C.k\n")
atom("mutual recursion", "def g(x):\n    return fn(x) + <>\ndef fn(x):\n    return g(x)\n")
atom("kernel reached", "import kern\ndef fn(x):\n    kern.kern[(1,)](x)\n", kern="import triton\n@triton.jit\ndef kern(x):\n    x + <>\n")
atom("name of a kernel reached", "import kern\ndef fn(x):\n    kern.k[(1,)](x)\n", "one", "two",
     kern="import triton\n@triton.jit\ndef <>(x):\n    x + 1\nk = <>\n")  # fmt: skip
atom("configuration of a kernel reached", "import kern\ndef fn(x):\n    kern.kern[(1,)](x)\n", "4", "8",
     kern="import triton\n@triton.autotune([triton.Config({}, num_warps=<>)], key=[])\n@triton.jit\ndef kern(x):\n    x + 1\n")  # fmt: skip
atom("operator's item", "import operator\nop = operator.itemgetter(<>)\ndef fn(x):\n    return op(x)\n")
atom("tensor subclass", "class fn(torch.Tensor):\n    @classmethod\n    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):\n        return func(*args) + <>\n")
atom("class made by dataclass", "import dataclasses\n@dataclasses.dataclass\nclass fn:\n    k: int = <>\n")
atom("context manager", "import contextlib\n@contextlib.contextmanager\ndef cm():\n    yield <>\ndef fn(x):\n    with cm() as k:\n        return x + k\n")
atom("custom operator's body", "@torch.library.custom_op('kcache_edits::f<>', mutates_args=())\ndef op(x: torch.Tensor) -> torch.Tensor:\n    return x + <>\nfn = op._init_fn\n")
atom("torch's name that is the user's", "@functools.wraps(torch.nn.functional.gelu)\ndef fn(x):\n    return x + <>\n")
# what an object holds besides plain attributes
atom("function's attribute", "def fn(x):\n    return x + fn.k\nfn.k = <>\n")
atom("function's attribute that is a list", "def fn(x):\n    return x + fn.k[0]\nfn.k = [<>]\n")
atom("function's attribute that is a function", "def g(x):\n    return <>\ndef h(x):\n    return x\nh.helper = g\ndef fn(x):\n    return h.helper(x)\n")
atom("attribute of a function that is handed on", "def g(x):\n    return x\ng.k = <>\ndef call(f, x):\n    return f(x) + f.k\ndef fn(x):\n    return call(g, x)\n")
atom("wrapped function", "def deco(f):\n    @functools.wraps(f)\n    def inner(x):\n        return inner.__wrapped__(x)\n    return inner\n@deco\ndef fn(x):\n    return x + <>\n")
atom("function behind lru_cache", "@functools.lru_cache\ndef g(x):\n    return x + <>\ndef fn(x):\n    return g.__wrapped__(x) + g(x)\n")
atom("cache without arguments", "@functools.cache\ndef g():\n    return <>\ndef fn(x):\n    return x + g()\n")
atom("cached property", "class C:\n    @functools.cached_property\n    def k(self):\n        return <>\nc = C()\ndef fn(x):\n    return x + c.k\n")
atom("partial method", "class C:\n    def f(self, k):\n        return k\n    g = functools.partialmethod(f, <>)\nc = C()\ndef fn(x):\n    return c.g()\n")
atom("single dispatch", "@functools.singledispatch\ndef g(x):\n    return 0\n@g.register\ndef _(x: int):\n    return <>\ndef fn(x):\n    return g(x)\n")
atom("function's name", "def g<>():\n    return 1\nh = g<>\ndef fn(x):\n    return h.__name__\n")
atom("function's docstring, read", "def g():\n    '<>'\ndef fn(x):\n    return g.__doc__\n")
atom("function's annotations, read", "def g(x: <>):\n    return 1\ndef fn(x):\n    return g.__annotations__\n")
for base, value in (("int", "<>"), ("float", "<>"), ("str", "'<>'"), ("bytes", "b'<>'"), ("list", "[<>]"), ("tuple", "(<>,)"), ("set", "{<>}"), ("dict", "{'a': <>}")):
    atom(f"subclass of {base}", f"class V({base}):\n    pass\nv = V({value})\ndef fn(x):\n    return x, v\n")
atom("method of a subclass of dict", "class V(dict):\n    def __missing__(self, key):\n        return <>\nv = V()\ndef fn(x):\n    return v[x]\n")
atom("user dictionary", "import collections\nv = collections.UserDict(a=<>)\ndef fn(x):\n    return v['a']\n")
atom("chained maps", "import collections\nv = collections.ChainMap({'a': <>})\ndef fn(x):\n    return v['a']\n")
atom("mapping proxy", "import types\nv = types.MappingProxyType({'a': <>})\ndef fn(x):\n    return v['a']\n")
atom("descriptor", "class D:\n    def __get__(self, o, t):\n        return <>\nclass C:\n    k = D()\nc = C()\ndef fn(x):\n    return c.k\n")
atom("class's __getattr__", "class C:\n    def __getattr__(self, name):\n        return <>\nc = C()\ndef fn(x):\n    return c.k\n")
atom("module's __getattr__", "import oth\ndef fn(x):\n    return oth.k\n", oth="def __getattr__(name):\n    if name == 'k':\n        return <>\n    raise AttributeError(name)\n")
atom("metaclass", "class M(type):\n    def f(cls):\n        return <>\nclass C(metaclass=M):\n    pass\ndef fn(x):\n    return C.f()\n")
atom("factory of a dataclass's field", "import dataclasses\ndef make():\n    return [<>]\n@dataclasses.dataclass\nclass C:\n    k: list = dataclasses.field(default_factory=make)\ndef fn(x):\n    return C().k\n")
atom("members of an enumeration", "import enum\nclass E(enum.Enum):\n    A = <>\ndef fn(x):\n    return [e.value for e in E]\n")
atom("flags", "import enum\nclass E(enum.IntFlag):\n    A = <>\n    B = 4\nv = E.A | E.B\ndef fn(x):\n    return v\n")
atom("getattr with a name from elsewhere", "class C:\n    K = <>\nname = 'K'\ndef fn(x):\n    return getattr(C, name)\n")
atom("star import", "from oth import *\ndef fn(x):\n    return g(x)\n", oth="def g(x):\n    return x + <>\n")
atom("pattern", "import re\nv = re.compile('<>')\ndef fn(x):\n    return v.match(x)\n")
atom("match statement", "def fn(x):\n    match x:\n        case <>:\n            return 1\n    return 2\n")
atom("facts of a dtype", "v = torch.finfo(torch.float<>)\ndef fn(x):\n    return v.eps\n", "32", "16")
atom("array", "import numpy\nv = numpy.array([<>, 3])\ndef fn(x):\n    return v\n")
for label, text in (("index", "os.environ['KC_V']"), ("get", "os.environ.get('KC_V')"), ("get with a default", "os.environ.get('KC_V', '0')"), ("getenv", "os.getenv('KC_V')"), ("alias", "E.get('KC_V', D)")):
    atom(f"environment variable by {label}", f"os.environ['KC_V'] = '<>'\nE, D = os.environ, 'd'\ndef fn(x):\n    return x + int({text})\n")
same("comment, docstring, layout", FN, "\n\ndef fn(x, y):\n    '''Doc.'''\n    # c\n    z = (x\n         + 1)\n\n    return z * y\n")
same("local renamed", FN, FN.replace("z", "total"))
same("captured local renamed", "def fn(x):\n    a = 1\n    b = 2\n    return lambda: a + b\n", "def fn(x):\n    z = 1\n    b = 2\n    return lambda: z + b\n")
same("moved down", FN, "\n\nOTHER = 1\ndef other():\n    pass\n\n" + FN)
same("helper renamed", "def g(x):\n    return x\ndef fn(x):\n    return g(x)\n", "def h(x):\n    return x\ndef fn(x):\n    return h(x)\n")
same("annotations", "def fn(x):\n    return x\n", "def fn(x: torch.Tensor) -> torch.Tensor:\n    return x\n")
same("class docstring", "class C:\n    def f(self):\n        return 1\nfn = C().f\n", "class C:\n    '''Doc.'''\n    def f(self):\n        '''Doc.'''\n        return 1\nfn = C().f\n")
same("unrelated environment variable", "os.environ.pop('KC_A', None)\n" + FN, "os.environ['KC_A'] = '1'\n" + FN)
opaque("eval", "def fn(x):\n    return eval('x')\n")
opaque("date", "import datetime\ndef fn(x):\n    return datetime.datetime.now()\n")
opaque("random", "import random\ndef fn(x):\n    return random.random()\n")
opaque("process", "def fn(x):\n    return os.getpid()\n")
opaque("environment handed on", "def fn(x):\n    return x(os.environ, 'A')\n")
opaque("exec", "def fn(x):\n    exec('x')\n")
opaque("unloaded import", "def fn(x):\n    import kcache_edits_absent as m\n    return m.f(x)\n")
opaque("open", "def fn(x):\n    return open('f')\n")
opaque("globals", "def fn(x):\n    return globals()['x']\n")
opaque("environment", "def fn(x):\n    return int(os.environ[x])\n")
opaque("getenv", "def fn(x):\n    return os.getenv(x)\n")
opaque("getenv by keyword", "def fn(x):\n    return os.getenv(default='A', key=x)\n")
opaque("question to the environment", "def fn(x):\n    return 'A' in os.environ\n")
opaque("path", "import pathlib\nP = pathlib.Path('f')\ndef fn(x):\n    return P.read_text()\n")
opaque("path made in the body", "import pathlib\ndef fn(x):\n    return pathlib.Path('f').exists()\n")
opaque("iterator", "I = iter([1])\ndef fn(x):\n    return next(I)\n")
opaque("module in a list", "L = [os]\ndef fn(x):\n    return L[0].sep\n")
opaque("random generator", "G = torch.Generator()\ndef fn(x):\n    return torch.rand(2, generator=G)\n")
opaque("type hints", "import typing\ndef g(x: int):\n    return 1\ndef fn(x):\n    return typing.get_type_hints(g)\n")
opaque("clock", "def fn(x):\n    return time.time()\n")
opaque("tensor", "T = torch.ones(2)\ndef fn(x):\n    return x + T\n")
opaque("module of parameters", "M = torch.nn.Linear(2, 2)\ndef fn(x):\n    return M(x)\n")
opaque("module as a value", "def fn(x):\n    return getattr(os, x)\n")
