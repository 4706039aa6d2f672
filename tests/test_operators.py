"""The Python behind an operator: what is baked into an artifact is a part, what runs later is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import kcache  # noqa: E402
from kcache import operators  # noqa: E402
from kcache.digest import Digest  # noqa: E402
from kcache.errors import Opaque  # noqa: E402
from kcache.hooks.describe import code_parts  # noqa: E402
from tests.test_graph import built, leaf  # noqa: E402

Parts = dict[str, Digest]


def parts(*names: str) -> Parts:
    """Parts of the operators `namespace::name`, by name."""
    found = operators.parts([op for name in names for op in operators.overloads(name)])
    return {part.name: part.digest for part in found}


@pytest.fixture
def enabled(own_caches: Path) -> Iterator[None]:
    """kcache on, with a store of its own; what the seam recorded is forgotten afterwards."""
    before = dict(operators.LOW_LEVEL)
    assert kcache.enable()
    yield
    kcache.disable()
    operators.LOW_LEVEL.clear()
    operators.LOW_LEVEL.update(before)


class Impl:
    @staticmethod
    def base(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    @staticmethod
    def edited(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by * 1.0


class Fake:
    @staticmethod
    def base(x: torch.Tensor, by: float) -> torch.Tensor:
        return torch.empty_like(x)

    @staticmethod
    def edited(x: torch.Tensor, by: float) -> torch.Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)


class Backward:
    @staticmethod
    def base(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.by, None

    @staticmethod
    def edited(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.by * 2, None


class SetupContext:
    @staticmethod
    def base(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1]

    @staticmethod
    def edited(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1] + 1


class Vmap:
    @staticmethod
    def base(info: Any, in_dims: Any, x: torch.Tensor, by: float) -> Any:
        return x * by, in_dims[0]

    @staticmethod
    def edited(info: Any, in_dims: Any, x: torch.Tensor, by: float) -> Any:
        return x * by + 0, in_dims[0]


ROLES = {"impl": Impl, "fake": Fake, "backward": Backward, "setup_context": SetupContext, "vmap": Vmap}


def define(edited: str = "", name: str = "lab_operators::scaled") -> Parts:
    """Define the custom operator anew, the function of one role edited; return its parts."""
    chosen = {role: cls.edited if role == edited else cls.base for role, cls in ROLES.items()}
    scaled = torch.library.custom_op(name, chosen["impl"], mutates_args=())
    scaled.register_fake(chosen["fake"])
    scaled.register_autograd(chosen["backward"], setup_context=chosen["setup_context"])
    scaled.register_vmap(chosen["vmap"])
    return parts(name)


@pytest.mark.parametrize("role", ["fake", "backward", "setup_context", "vmap"])
def test_an_edited_function_that_is_traced_changes_its_part_alone(role: str) -> None:
    """Fake, backward, setup_context and vmap rule are parts, each under its own name."""
    base = define()
    changed = define(role)
    differing = {name for name in {*base, *changed} if base.get(name) != changed.get(name)}
    assert differing
    assert all(role in name or (role, "abstract" in name) == ("fake", True) for name in differing)
    assert define() == base


def test_the_implementation_of_a_custom_op_is_not_a_part() -> None:
    """Generated code calls it at run time, so an edit of it needs no compile."""
    assert define() == define("impl")


def test_the_schema_is_a_part() -> None:
    """Two overloads and two schemas of one name are told apart."""

    def made(schema: str) -> Parts:
        with torch.library._scoped_library("lab_schema", "DEF") as library:
            library.define(schema)
            return parts("lab_schema::op")

    assert made("op(Tensor x) -> Tensor") != made("op(Tensor(a!) x) -> Tensor")
    assert made("op(Tensor x) -> Tensor") == made("op(Tensor x) -> Tensor")


def test_torchs_own_operators_have_no_parts() -> None:
    """Their code is in torch's source key."""
    assert operators.overloads("aten::add") == []


def test_an_operator_that_does_not_exist_is_opaque() -> None:
    """A name that nothing defines is refused, not skipped."""
    with pytest.raises(Opaque, match="absent"):
        operators.overloads("lab_operators::absent")


# --- the low-level library ---


def low_level(namespace: str, function: Any, key: str = "CompositeImplicitAutograd") -> Any:
    library = torch.library.Library(namespace, "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", function, key)
    return library


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@pytest.mark.usefixtures("enabled")
def test_an_implementation_registered_after_enable_is_a_part() -> None:
    """`Library.impl` is seen from `enable()` on, and what is traced through is followed."""
    found = []
    for function in (twice, thrice, twice):
        library = low_level("lab_after", function)
        found.append(parts("lab_after::op"))
        library._destroy()
    assert found[0] == found[2]
    assert found[0] != found[1]
    assert any("CompositeImplicitAutograd" in name for name in found[0])


@pytest.mark.usefixtures("enabled")
def test_a_run_time_implementation_registered_after_enable_is_no_part() -> None:
    """A CPU kernel is called by generated code and is not baked in."""
    found = []
    for function in (twice, thrice):
        library = low_level("lab_cpu", function, "CPU")
        found.append(parts("lab_cpu::op"))
        library._destroy()
    assert found[0] == found[1]


@pytest.mark.usefixtures("enabled")
def test_the_dispatch_key_of_the_library_counts_where_none_is_given() -> None:
    """`Library(..., "IMPL", "CompositeImplicitAutograd").impl(name, fn)` is seen under that key."""
    library = torch.library.Library("lab_default", "DEF")
    library.define("op(Tensor x) -> Tensor")
    second = torch.library.Library("lab_default", "IMPL", "CompositeImplicitAutograd")
    second.impl("op", twice)
    found = parts("lab_default::op")
    second._destroy()
    library._destroy()
    assert any("CompositeImplicitAutograd" in name for name in found)


def test_one_registered_before_enable_is_opaque_and_says_what_to_do() -> None:
    """What was registered unseen cannot be followed: the reason names the operator and `KCACHE=1`."""
    library = low_level("lab_before", twice)
    try:
        with pytest.raises(Opaque, match=r"lab_before::op.*KCACHE=1"):
            parts("lab_before::op")
    finally:
        library._destroy()


@pytest.mark.usefixtures("enabled")
def test_an_implementation_that_cannot_be_followed_is_opaque() -> None:
    """The reason names the operator, the role and the name in the function."""

    def reads(x: torch.Tensor) -> torch.Tensor:
        return eval("x")

    library = low_level("lab_opaque", reads)
    try:
        with pytest.raises(Opaque, match=r"lab_opaque::op.*CompositeImplicitAutograd.*eval"):
            parts("lab_opaque::op")
    finally:
        library._destroy()


# --- operators reached through code ---


def calls_another(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.lab_operators.scaled(x, 2.0) + 1


def test_a_followed_function_brings_the_operators_that_it_calls() -> None:
    """`torch.ops.lab.other` in a function's body is followed as an operator, backward and all."""
    from kcache.graph import canonical

    def of(edited: str) -> Parts:
        define(edited)
        graph = canonical(built((calls_another, ("a",))), leaf)
        return {part.name: part.digest for part in code_parts(graph, [])}

    base = of("")
    assert any("backward" in name for name in base)
    assert of("backward") != base
    assert of("impl") == base


@pytest.mark.usefixtures("enabled")
def test_an_operator_brings_the_operators_that_its_functions_call() -> None:
    """A composite that calls another user operator has that one's parts too."""
    base = define()
    library = low_level("lab_outer", calls_another)
    try:
        found = parts("lab_outer::op")
        assert base.items() <= found.items()
        changed = define("backward")
        assert changed.items() <= parts("lab_outer::op").items()
    finally:
        library._destroy()


def test_a_triton_op_is_followed_into_its_body() -> None:
    """The body of a `triton_op` is traced into the graph, so an edit of it is a change."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def edited(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    found = []
    for function in (body, edited, body):
        torch.library.triton_op("lab_operators::traced", function, mutates_args=())
        found.append(parts("lab_operators::traced"))
    assert found[0] == found[2]
    assert found[0] != found[1]


def test_a_registered_decomposition_is_a_part() -> None:
    """A decomposition of a user operator is traced into the graph."""
    from torch._decomp import global_decomposition_table, register_decomposition

    define(name="lab_operators::decomposed")
    op = torch.ops.lab_operators.decomposed.default
    found = []
    for function in (Impl.base, Impl.edited):
        global_decomposition_table["post_autograd"].pop(op, None)
        register_decomposition(op)(function)
        found.append(parts("lab_operators::decomposed"))
    global_decomposition_table["post_autograd"].pop(op, None)
    assert found[0] != found[1]
