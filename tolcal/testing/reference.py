"""A reference function on the inputs of a test: its fp64 value, and sigma.

sigma is how far a reference moves under tiny changes of its inputs, so a function that isn't one
(its value depends on a state, or on chance) would make it huge, and any output pass. Such a
function is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import numpy as np

from tolcal import cases
from tolcal.model import TolcalError
from tolcal.testing.kinds import is_array, is_float, is_torch, judgeable, name_of, wide

#: pytest shows the test's own line of what is refused here, and all of a fault of ours.
__tracebackhide__ = methodcaller("errisinstance", (TolcalError, AssertionError))

#: As in `stats`, of whose sensitivity this is the numpy form.
STEP = 2.0**-26
SIGN_VECTORS = 32


def inputs_of(reference: Any, inputs: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Any]:
    """The inputs by the names of the function's parameters; none for a reference value.

    Raises TolcalError if they can't be given to it by name.
    """
    if not callable(reference):
        if inputs is not None:
            raise TolcalError(
                "inputs= goes with a reference function; with a reference tensor leave it out"
            )
        return {}
    if inputs is None:
        raise TolcalError(
            "a reference function needs inputs=, what the kernel was given: a mapping of its "
            "parameters, or a sequence in their order"
        )
    try:
        signature = inspect.signature(reference)
    except (TypeError, ValueError) as error:  # some built-in functions have none
        if isinstance(inputs, Mapping):
            return dict(inputs)
        raise TolcalError(
            f"inputs= don't fit the reference function ({error}); give a mapping of its parameters"
        ) from None
    fixed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    nameless = [p for p in signature.parameters.values() if p.kind in fixed]
    if nameless:
        star = "*" if nameless[0].kind == inspect.Parameter.VAR_POSITIONAL else ""
        raise TolcalError(
            f"the reference function takes '{star}{nameless[0].name}' by position only; inputs are "
            "given by name: wrap it, as in reference=lambda x: f(x)"
        )
    try:
        if isinstance(inputs, Mapping):
            signature.bind(**inputs)
            return dict(inputs)
        return dict(signature.bind(*inputs).arguments)
    except TypeError as error:
        raise TolcalError(
            f"inputs= don't fit the reference function ({error}); give a mapping of its parameters"
        ) from None


def apply(reference: Callable[..., Any], given: Mapping[str, Any], actual: Any) -> tuple[Any, Any]:
    """fp64 reference and sigma. Floating-point inputs are widened; others go in as they are.

    Raises TolcalError unless the function returns float64 of ``actual``'s kind, the same bits
    every time, and leaves its inputs alone. It is called once more right after the first time
    (chance), and at the end (a state that the calls for sigma have changed).
    """
    floats = {name: wide(x) for name, x in given.items() if is_float(x)}
    others = {name: x for name, x in given.items() if name not in floats}
    if not floats:
        raise TolcalError("inputs= holds no floating-point tensor; give the kernel's own inputs")
    before = {name: _copy(x) for name, x in others.items()}

    def function(**moved: Any) -> Any:
        return reference(**others, **moved)

    def value() -> Any:
        copies = {name: _copy(x) for name, x in floats.items()}
        result = function(**copies)
        pairs = [(n, x, copies[n]) for n, x in floats.items()]
        pairs += [(n, x, others[n]) for n, x in before.items()]
        changed = [name for name, was, now in pairs if not _same(was, now)]
        if changed:
            raise TolcalError(
                f"the reference function changes its input {changed[0]!r}; make it work on a copy"
            )
        return _copy(result)  # it may hand out the same buffer every time

    ref = value()
    judgeable(ref, "the reference function's value", real=False)
    if is_torch(ref) != is_torch(actual) or not is_array(ref) or name_of(ref) != "float64":
        has = f"{type(ref).__name__} of {getattr(ref, 'dtype', 'no dtype')}"
        raise TolcalError(
            f"the reference function returned a {has}; from float64 inputs it must compute the "
            "same kind of float64"
        )
    _repeats(ref, value())
    if is_torch(ref):
        from tolcal import stats

        signs = {
            name: cases.words_torch(_stream(name), x.numel(), x.device).reshape(x.shape)
            for name, x in floats.items()
        }
        sigma = stats.sensitivity(function, floats, ref, signs)
    else:
        sigma = _sensitivity(function, floats, ref)
    _repeats(ref, value())
    return ref, sigma


def _repeats(ref: Any, again: Any) -> None:
    """Raises TolcalError if the same inputs gave another value."""
    if _same(ref, again):
        return
    raise TolcalError(
        "the reference function returned two different values for the same inputs: it must depend "
        "on them alone; take out what is random (dropout), a counter or an earlier result, sum in "
        "a fixed order (on a GPU: torch.use_deterministic_algorithms), or give its value"
    )


def _stream(name: str) -> int:
    return cases.key("sigma", 1, name)  # as `cases.sign_words`


def _sensitivity(function: Callable[..., Any], floats: Mapping[str, Any], ref: Any) -> Any:
    """``stats.sensitivity`` for numpy: the same signs, so the same sigma."""
    signs = {n: cases.words_numpy(_stream(n), x.size).reshape(x.shape) for n, x in floats.items()}
    total = np.zeros_like(ref)
    with np.errstate(all="ignore"):
        for vector in range(SIGN_VECTORS):
            moved = {
                name: x
                * (1 + STEP * (1 - 2 * ((signs[name] >> np.uint64(vector)) & 1).astype(float)))
                for name, x in floats.items()
            }
            total += np.square((function(**moved) - ref) / STEP)
        sigma = np.sqrt(total / SIGN_VECTORS)
    return np.where(np.isfinite(sigma), sigma, 0.0)


def _copy(value: Any) -> Any:
    """Arrays, those in lists, tuples and dictionaries too; what else there is stays itself."""
    if is_torch(value):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copy(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(x) for x in value]
    return value


def _same(one: Any, other: Any) -> bool:
    """Whether all numbers are: not-a-number is like itself."""
    if is_array(one):
        if not is_array(other) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        if is_torch(one) and one.is_floating_point() and one.element_size() == 1:
            one, other = wide(one), wide(other)  # torch doesn't compare fp8
        same = (one == other) | ((one != one) & (other != other))
        return bool(same.all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(x, other[k]) for k, x in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other or bool(one == other)
