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
        try:
            module = run(code, key, path)
        except Exception as error:
            whole = sound(code, text, path, error)
            if whole is None:
                raise
            module = run(whole, key, path)
        if set_sys_modules:
            sys.modules[module.__name__] = module
        return module

    def run(code: CodeType, key: str, path: str) -> ModuleType:
        module = ModuleType(f"{prefix}.{key}")
        module.__file__ = path
        module.key = key  # type: ignore[attr-defined]
        exec(code, module.__dict__)
        return module

    patches.replace(codecache, "_reload_python_module", _reload_python_module)


def sound(code: CodeType, text: str, path: str, error: Exception) -> CodeType | None:
    """What `text` compiles to, if `code`, whose run ended with `error`, is something else: then its entry is removed.

    None if the two are equal, and so the text itself is to blame.
    """
    whole = compile(text, path, "exec", dont_inherit=True)
    if whole == code:
        return None
    parts = parts_of(text)
    session.current().spoiled("code", Key.of(parts), "", "entry fails when first used", error)
    _keep(parts, whole)
    return whole


def parts_of(text: str) -> list[Part]:
    """What the code of the module `text` depends on."""
    return [Part.of("layer", "code"), Part.of("text", text), Part.of("python", INTERPRETER, readable=True)]


def code_of(text: str, path: str) -> CodeType:
    """Code object of the module `text`, as if compiled from `path`. Raises `SyntaxError`."""
    if not session.caching():
        return compile(text, path, "exec", dont_inherit=True)
    active = session.current()
    parts = parts_of(text)
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
        active.spoiled("code", key, "", "entry does not load", error)
    code = compile(text, path, "exec", dont_inherit=True)
    _keep(parts, code)
    return code


def _keep(parts: list[Part], code: CodeType) -> None:
    active = session.current()
    try:
        active.cache.put("code", Key.of(parts), marshal.dumps(placed(code, "<kcache>")), parts=parts)
    except Exception as error:
        active.trouble("code", "save failed", error)


def placed(code: CodeType, path: str) -> CodeType:
    """`code`, and every code object inside it, with `path` as its file."""
    constants = tuple(placed(c, path) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=path, co_consts=constants)
