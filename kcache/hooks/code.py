"""Layer `code`: Inductor's generated Python modules as code objects.

Generated modules are executed anew in every process, and compiling their text is a third
of a second for a model of six layers. The code object is kept under the digest of the
text and the Python that compiled it; the file stays, for tracebacks and for `inspect`.
"""

from __future__ import annotations

import marshal
import sys
from pathlib import Path
from types import CodeType, ModuleType

from kcache.digest import Key, Part
from kcache.hooks import session
from kcache.hooks.patch import Patches, require

INTERPRETER = f"{sys.implementation.cache_tag} {sys.hexversion:#x} {sys.flags.optimize}"


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._inductor import codecache
    from torch._inductor.runtime import compile_tasks

    require(codecache, "_reload_python_module", ("key", "path", "set_sys_modules"))
    prefix = compile_tasks.__name__

    def _reload_python_module(key: str, path: str, set_sys_modules: bool = True) -> ModuleType:
        text = Path(path).read_text()
        try:
            code = code_of(text, path)
        except SyntaxError as error:
            raise RuntimeError(f"Failed to import {path}\n{type(error).__name__}: {error}") from None
        module = ModuleType(f"{prefix}.{key}")
        module.__file__ = path
        module.key = key  # type: ignore[attr-defined]
        exec(code, module.__dict__)
        if set_sys_modules:
            sys.modules[module.__name__] = module
        return module

    patches.replace(codecache, "_reload_python_module", _reload_python_module)


def code_of(text: str, path: str) -> CodeType:
    """Code object of the module `text`, as if compiled from `path`. Raises `SyntaxError`."""
    if not session.caching():
        return compile(text, path, "exec", dont_inherit=True)
    active = session.current()
    parts = [Part.of("layer", "code"), Part.of("text", text), Part.of("python", INTERPRETER, readable=True)]
    key = Key.of(parts)
    try:
        kept = active.cache.get("code", key)
        if kept is None:
            active.missed("code", key, parts)
    except Exception as error:
        active.trouble("code", "lookup failed", error)
        kept = None
    try:
        if kept is not None:
            return placed(marshal.loads(kept), path)
    except Exception as error:
        active.trouble("code", "entry does not load", error)
    code = compile(text, path, "exec", dont_inherit=True)
    try:
        active.cache.put("code", key, marshal.dumps(placed(code, "<kcache>")), parts=parts)
    except Exception as error:
        active.trouble("code", "save failed", error)
    return code


def placed(code: CodeType, path: str) -> CodeType:
    """`code`, and every code object inside it, with `path` as its file."""
    constants = tuple(placed(c, path) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=path, co_consts=constants)
