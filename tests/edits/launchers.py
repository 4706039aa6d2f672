"""Edits of decorators: options of `jit`, autotuners, heuristics, hooks."""

from __future__ import annotations

from tests.edits import NEUTRAL, SEMANTIC, Row
from tests.edits.kernels import HEAD, kern

ROWS: list[Row] = []


def deco(name: str, kind: str, before: str, after: str, pre: str = "", pre_after: str | None = None) -> None:
    """A row in which the decorators differ, or what they name."""
    parameters = ", SC: tl.constexpr = 1"
    old = kern("x * SC + y", pre, parameters, before)
    new = kern("x * SC + y", pre if pre_after is None else pre_after, parameters, after)
    ROWS.append(Row(name, kind, {"kern.py": old}, {"kern.py": new}))


def jit(name: str, before: str, after: str, pre: str = "") -> None:
    """A semantic row on the options of `jit`."""
    deco(name, SEMANTIC, f"@triton.jit({before})", f"@triton.jit({after})", pre)


def tune(configs: str, rest: str = "") -> str:
    """An autotuner over a jitted function."""
    return f"@triton.autotune(configs=[{configs}], key=['n']{rest})\n@triton.jit"


def config(rest: str = "", block: int = 64, sc: int = 2) -> str:
    """One configuration."""
    return f"triton.Config({{'BLOCK': {block}, 'SC': {sc}}}{rest})"


def hook(name: str, body: str, spelled: str, parameters: str = "*a, **k") -> None:
    """A semantic row on the body of a function that an autotuner holds."""
    pre = f"def hook({parameters}):\n    return {body}\n"
    deco(name, SEMANTIC, spelled, spelled, pre, pre.replace("1", "2"))


jit("noinline", "", "noinline=True")
jit("debug", "", "debug=True")
jit("version", "version=1", "version=2")
jit("do_not_specialize", "", "do_not_specialize=['n']")
jit("do_not_specialize by position", "do_not_specialize=[3]", "do_not_specialize=[]")
jit("do_not_specialize_on_alignment", "", "do_not_specialize_on_alignment=['n']")
jit("launch_metadata", "", "launch_metadata=meta", "def meta(*a):\n    return {}\n")
jit("repr", "", "repr=name", "def name(spec):\n    return 'k'\n")
deco(
    "repr's body",
    SEMANTIC,
    "@triton.jit(repr=name)",
    "@triton.jit(repr=name)",
    "def name(s):\n    return 'k'\n",
    "def name(s):\n    return 'l'\n",
)
deco("jit called without options", NEUTRAL, "@triton.jit", "@triton.jit()")
deco("autotuner added", SEMANTIC, "@triton.jit", tune(config()))
for field, old, new in (
    ("value", config(), config(sc=3)), ("block", config(), config(block=128)), ("num_warps", config(), config(", num_warps=8")),
    ("num_stages", config(), config(", num_stages=5")), ("num_ctas", config(), config(", num_ctas=2")),
    ("maxnreg", config(), config(", maxnreg=64")), ("ir_override", config(), config(", ir_override='a.ttir'")),
    ("added", config(), f"{config()}, {config(block=128)}"), ("order", f"{config()}, {config(block=128)}", f"{config(block=128)}, {config()}"),
):  # fmt: skip
    deco(f"config: {field}", SEMANTIC, tune(old), tune(new))
deco("config: default spelled out", NEUTRAL, tune(config()), tune(config(", num_warps=4")))
deco("config: commented", NEUTRAL, tune(config()), tune(config() + "  # fine\n"))
deco(
    "config: type of a value",
    SEMANTIC,
    tune("triton.Config({'BLOCK': 64, 'SC': 1})"),
    tune("triton.Config({'BLOCK': 64, 'SC': True})"),
)
deco("key", SEMANTIC, tune(config()), tune(config()).replace("['n']", "['n', 'BLOCK']"))
deco("reset_to_zero", SEMANTIC, tune(config()), tune(config(), ", reset_to_zero=['o_ptr']"))
deco("restore_value", SEMANTIC, tune(config()), tune(config(), ", restore_value=['o_ptr']"))
deco(
    "restore instead of reset",
    SEMANTIC,
    tune(config(), ", reset_to_zero=['o_ptr']"),
    tune(config(), ", restore_value=['o_ptr']"),
)
hook("config's pre_hook", "a[0]['n'] + 1", tune(config(", pre_hook=hook")))
hook("autotuner's pre_hook", "1", tune(config(), ", pre_hook=hook"))
hook("autotuner's post_hook", "1", tune(config(), ", post_hook=hook"))
hook("early_config_prune", "a[0][:1]", tune(config(), ", prune_configs_by={'early_config_prune': hook}"))
hook("perf_model", "1", tune(config(), ", prune_configs_by={'perf_model': hook, 'top_k': 1}"))
hook("do_bench", "1", tune(config(), ", do_bench=hook"))
deco(
    "top_k",
    SEMANTIC,
    tune(config(), ", prune_configs_by={'top_k': 1}"),
    tune(config(), ", prune_configs_by={'top_k': 2}"),
)
CONFIGS = "def configs():\n    return [triton.Config({'BLOCK': b, 'SC': 1}) for b in (32, 64)]\n"
CALLED = "@triton.autotune(configs=configs(), key=['n'])\n@triton.jit"
deco("configs from a function", SEMANTIC, CALLED, CALLED, CONFIGS, CONFIGS.replace("64", "128"))
deco(
    "configs by comprehension or list",
    NEUTRAL,
    CALLED,
    tune("triton.Config({'BLOCK': 32, 'SC': 1}), triton.Config({'BLOCK': 64, 'SC': 1})"),
    CONFIGS,
)

HEURISTICS = "@triton.heuristics({'SC': lambda args: args['n'] % 2})\n@triton.jit"
deco("heuristics", SEMANTIC, HEURISTICS, HEURISTICS.replace("% 2", "% 3"))
deco("heuristics commented", NEUTRAL, HEURISTICS, HEURISTICS.replace("heuristics(", "heuristics(  # fixed\n    "))
deco("heuristics for another name", SEMANTIC, HEURISTICS, HEURISTICS.replace("'SC'", "'BLOCK'"))
TWO = "@triton.heuristics({'SC': lambda args: 1, 'BLOCK': lambda args: 64})\n@triton.jit"
deco("two lambdas on one line", SEMANTIC, TWO, TWO.replace("64", "32"))
deco(
    "two lambdas swapped",
    SEMANTIC,
    TWO,
    "@triton.heuristics({'SC': lambda args: 64, 'BLOCK': lambda args: 1})\n@triton.jit",
)
NAMED = "@triton.heuristics({'SC': pick})\n@triton.jit"
PICK = "K = 2\ndef pick(args):\n    return args['n'] % K\n"
deco("heuristics' global", SEMANTIC, NAMED, NAMED, PICK, PICK.replace("K = 2", "K = 3"))
deco(
    "heuristics' local renamed",
    NEUTRAL,
    NAMED,
    NAMED,
    "def pick(args):\n    a = args['n']\n    return a\n",
    "def pick(args):\n    b = args['n']\n    return b\n",
)
deco("heuristics' partial", SEMANTIC, NAMED, NAMED, "import functools\ndef f(k, args):\n    return k\npick = functools.partial(f, 1)\n",
     "import functools\ndef f(k, args):\n    return k\npick = functools.partial(f, 2)\n")  # fmt: skip
deco(
    "heuristics' triton function",
    SEMANTIC,
    NAMED,
    NAMED,
    "def pick(args):\n    return triton.next_power_of_2(args['n'])\n",
    "def pick(args):\n    return triton.cdiv(args['n'], 2)\n",
)
BOTH = f"@triton.autotune(configs=[{config()}], key=['n'])\n{HEURISTICS}"
deco("heuristics under an autotuner", SEMANTIC, BOTH, BOTH.replace("% 2", "% 3"))

WRAPPED = "class Entry(triton.runtime.KernelInterface):\n    def __init__(self, fn, tag=1):\n        self.fn = fn\n        self.tag = tag\n"
deco("library's own wrapper", SEMANTIC, "@Entry\n@triton.jit", "@Entry\n@triton.jit(noinline=True)", WRAPPED)
deco(
    "library's own wrapper: field",
    SEMANTIC,
    "@Entry\n@triton.jit",
    "@Entry\n@triton.jit",
    WRAPPED,
    WRAPPED.replace("tag=1", "tag=2"),
)
assert HEAD
