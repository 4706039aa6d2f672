"""The text that Inductor prints for a user kernel into its generated module.

Inductor collects helpers by bare name, which fails for a helper reached through a module,
a closure or a class, and takes the wrong one where two have the same name. In its place
goes the linked text (`kcache.link`), which is what the key was made of. Under `link="off"`
Inductor's text stays.

The generated module is compiled in worker processes, where nothing is patched: the
kernel's digest is in the text as a comment, so Triton's key of it differs wherever the
closure does.

A kernel that cannot be linked is printed by Inductor as ever, and graphs with it are not
stored: what was compiled there need not be what the key says.
"""

from __future__ import annotations

import ast
import threading
import uuid
from collections.abc import Iterable
from typing import Any

from kcache import link, listing
from kcache.closure import fingerprint
from kcache.digest import Part
from kcache.errors import Opaque
from kcache.hooks import errors, session
from kcache.hooks.patch import Patches, require

_local = threading.local()

_linked: dict[str, str] = {}
"""Linked text by digest, of the kernels that were compiled from it."""

_unlinked: dict[str, str] = {}
"""Reason by digest, of the kernels that Inductor has printed in its own way."""


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._inductor.codegen import wrapper

    printer = "user_defined_triton_kernel_transitive_closure_source_code"
    definer = "define_user_defined_triton_kernel"
    owner = wrapper.PythonWrapperCodegen
    require(wrapper, printer, ("kernel",))
    require(owner, definer, ("self", "kernel"))
    print_kernel, define = getattr(wrapper, printer), getattr(owner, definer)

    def transitive_closure_source_code(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(_local, "defining", False):  # torch asks for a key, which ours stands in for
            return f"kcache {fingerprint(kernel).digest.hex}"
        return text_of(kernel, lambda: print_kernel(kernel, *args, **kwargs), *args, **kwargs)

    def define_user_defined_triton_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        _local.defining = True
        try:
            return define(self, *args, **kwargs)
        finally:
            _local.defining = False

    patches.replace(wrapper, printer, transitive_closure_source_code, by_value=True)
    patches.replace(owner, definer, define_user_defined_triton_kernel)


def text_of(kernel: Any, stock: Any, epilogue_fusion: tuple[Any, str] | None = None) -> Any:
    """The text to compile for `kernel`: linked, else what `stock` prints.

    `epilogue_fusion` holds Inductor's own extension of the kernel's function.
    """
    try:
        found = fingerprint(kernel)
        if found.opaque:  # whatever is made of it is found by nobody
            return with_comment(stock(), f"kcache {found.digest.hex} {uuid.uuid4().hex}")
        if session.current().settings.link == "off":
            return with_comment(stock(), f"kcache {found.digest.hex}")
        try:
            linked = link.link(kernel, epilogue_fusion[1] if epilogue_fusion else None)
        except Opaque as opaque:
            _unlinked[found.digest.hex] = str(opaque)
            return with_comment(stock(), f"kcache {found.digest.hex}")
        if epilogue_fusion is None:
            _linked[found.digest.hex] = linked.module
        mark = f"kcache {found.digest.hex}"
        errors.note(with_comment(linked.root, mark), linked.origins)
        return f"# from {linked.origin}\n{with_comment(linked.body, mark)}"
    except Exception as error:
        session.current().trouble("fx", "kernel text failed", error)
        return stock()


def unlinked(parts: Iterable[Part]) -> list[str]:
    """Reasons why kernels among these parts of a key were not compiled from their linked text."""
    digests = [part.digest.hex for part in parts if part.name.startswith("kernel ")]
    return [_unlinked[digest] for digest in digests if digest in _unlinked]


def texts(parts: Iterable[Part]) -> list[Part]:
    """The linked texts of the kernels among these parts of a key, to be kept beside it."""
    kernels = {part.name.split(" ", 2)[2]: part.digest.hex for part in parts if part.name.startswith("kernel ")}
    return [listing.linked(name, _linked[digest]) for name, digest in kernels.items() if digest in _linked]


def mode() -> str:
    """How kernels are printed, as a part of keys."""
    return "off" if session.current().settings.link == "off" else link.VERSION


def with_comment(text: str, comment: str) -> str:
    """`text` with `comment` at the end of its first function's last line."""
    first = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    lines = text.split("\n")
    lines[(first.end_lineno or first.lineno) - 1] += f"  # {comment}"
    return "\n".join(lines)
