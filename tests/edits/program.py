"""How a program of the tables is run: alone for its key, or with others in a process of its own for its value.

The module `entry` of a program has

* `step(x, y)`, which is compiled, and `expect(x, y)`, the value that it must have, by other means;
* optionally `GRAD`: the value is then the gradient of `x` for a gradient of ones;
* optionally `inputs(x, y)`, what `step` is called with; `value(result)`, what is compared;
  `before(x, y)`, run ahead of it; `OPTIONS`, options of `torch.compile`.

`python -m tests.edits.program FOLDER DEVICE ROW...` runs versions that lie in folders of
their own and prints one JSON line: by row the outcomes by layer, and what went wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor
from torch._inductor.compile_fx import compile_fx

import kcache
from kcache.hooks import configured, guarded
from kcache.hooks.configured import AUTOGRAD, PASSES
from kcache.key import Description, Descriptions
from tests.edits import load

MODULES = ("entry.py", "op.py", "kern.py", "hlp.py", "cfg.py", "other.py", "second.py")
"""Every file that a program may consist of."""

SET = (*PASSES, *configured.private(), "fallback_random", "estimate_op_runtime", "external_matmul")
"""Every setting of Inductor's that a program may change; `save_config` leaves passes out."""


@contextlib.contextmanager
def loaded(folder: Path) -> Iterator[Any]:
    """The module `entry` in `folder`; afterwards its operators are gone and Inductor's settings are as before."""
    torch._dynamo.reset()
    try:
        with contextlib.ExitStack() as stack:
            for config, names in ((inductor, SET), (torch._functorch.config, (*AUTOGRAD, "activation_memory_budget"))):
                stack.enter_context(config.patch({name: getattr(config, name) for name in names if hasattr(config, name)}))
            yield load(folder, MODULES, "entry")
    finally:
        for name in MODULES:
            module = sys.modules.pop(name.removesuffix(".py"), None)
            for value in list(vars(module).values()) if module else ():
                if isinstance(value, torch.library.Library):
                    value._destroy()
        torch._dynamo.reset()


def arguments(entry: Any, device: str) -> tuple[Any, Any, Any]:
    """`x`, `y` and what `step` takes."""
    x = (torch.arange(256, device=device, dtype=torch.float32) / 7).view(16, 16)
    y = torch.linspace(-1, 1, 256, device=device).view(16, 16)
    x.requires_grad_(getattr(entry, "GRAD", False))
    return x, y, entry.inputs(x, y) if hasattr(entry, "inputs") else (x, y)


class Taken(BaseException):
    """Ends a compile as soon as its key is known. Torch catches every `Exception` on the way."""


class _First(Descriptions):
    def remember(self, description: Description) -> Any:
        raise Taken(description)


def described(folder: Path) -> Description | str:
    """Description of the program's first AOTAutograd compile, or the reason why it has no key. Nothing is compiled."""

    def compiler(gm: Any, inputs: Any, options: Any = None) -> Any:
        return compile_fx(gm, inputs, inner_compile=never, config_patches=options)

    def never(*args: Any, **kwargs: Any) -> Any:
        reasons = kcache.stats().since(before).reasons
        raise Taken("; ".join(reason for (layer, outcome, reason) in reasons if outcome == "bypass") or "no key, no reason")

    before = kcache.stats()
    kept, guarded.DESCRIPTIONS = guarded.DESCRIPTIONS, _First()
    try:
        with loaded(folder) as entry:
            _, _, given = arguments(entry, "cpu")
            torch.compile(entry.step, backend=compiler, **getattr(entry, "OPTIONS", {}))(*given)
        raise AssertionError("the program compiles nothing")
    except Taken as taken:
        return taken.args[0]  # type: ignore[no-any-return]
    finally:
        guarded.DESCRIPTIONS = kept


def run(folder: Path, device: str) -> dict[str, Any]:
    """Compile and run the program; its outcomes by layer, and whether its value is the expected one."""
    with loaded(folder) as entry:
        x, y, given = arguments(entry, device)
        if hasattr(entry, "before"):
            entry.before(x, y)
        before = kcache.stats()
        result = torch.compile(entry.step, **getattr(entry, "OPTIONS", {}))(*given)
        result = entry.value(result) if hasattr(entry, "value") else result
        if getattr(entry, "GRAD", False):
            result.backward(torch.ones_like(result))
            result = x.grad
        counted = kcache.stats().since(before)
        expected = entry.expect(x.detach(), y)
        right = result.dtype == expected.dtype and torch.allclose(result, expected, rtol=1e-4, atol=1e-4)
        shown = [t.detach().flatten()[:3].tolist() for t in (result, expected)]
        reasons = [f"{layer} {outcome}: {why}" for layer, outcome, why in counted.reasons]
        return {"right": right, "shown": shown, "layers": counted.layers, "reasons": reasons}


def main(root: Path, device: str, names: list[str]) -> None:
    """Run the programs in the folders `names` of `root`, one after the other, each on a store of its own."""
    stores = Path(os.environ["KCACHE_DIR"])
    found: dict[str, Any] = {}
    for name in names:
        assert kcache.enable(dir=stores / name)
        try:
            found[name] = run(root / name, device)
        except Exception as error:
            found[name] = {"right": False, "error": f"{type(error).__name__}: {error}"[:2000], "layers": {}}
        finally:
            kcache.disable()
    print(json.dumps(found))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
