"""The configurations of autotuned Triton kernels, one at a time.

`triton.autotune` times every configuration on the first arguments of a kind and keeps the fastest:
which of them a test has run depends on the machine. Here a launch gets the configuration that is
asked for. The autotuner goes its usual way (pruning, hooks), only its benchmark is taken from it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

#: What a benchmark would give for the configuration that is wanted, and for the others.
_FAST, _SLOW = [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]


def tuners(function: Callable[..., Any]) -> list[Any]:
    """The autotuners with several configurations that a kernel's module holds, by name.

    Also those that other decorators wrap, and those of modules beside it that it imports whole.
    """
    module = sys.modules.get("triton.runtime.autotuner")
    if module is None:
        return []
    names = getattr(inspect.unwrap(function), "__globals__", {})
    folder = str(names.get("__file__", "")).rpartition("/")[0]
    values = [value for _, value in sorted(names.items())]
    for other in list(values):
        if isinstance(other, ModuleType) and folder:
            source = str(getattr(other, "__file__", None) or "")
            if source.startswith(f"{folder}/"):
                values += [value for _, value in sorted(vars(other).items())]
    found: dict[int, Any] = {}
    for value in values:
        inner = value
        while isinstance(inner, module.KernelInterface):
            if isinstance(inner, module.Autotuner) and len(inner.configs) > 1:
                found[id(inner)] = inner
            inner = getattr(inner, "fn", None)
    return list(found.values())


def settle(function: Callable[..., Any]) -> None:
    """Lets each autotuner take the first configuration that its pruning leaves, for good.

    For the interpreter, which has no clock to choose by.
    """
    for tuner in tuners(function):
        tuner._bench = lambda *_, **__: _FAST  # of equals the first is taken
        tuner.cache_results = False


@contextmanager
def pinned(tuner: Any, config: Any) -> Iterator[None]:
    """Within, ``tuner`` launches ``config`` if its pruning leaves that; see `launched`."""
    own = {name: vars(tuner)[name] for name in ("_bench", "cache_results") if name in vars(tuner)}
    cache, best = tuner.cache, getattr(tuner, "best_config", None)
    tuner.cache, tuner.best_config, tuner.cache_results = {}, None, False
    wanted = config
    tuner._bench = lambda *_, config, **__: _FAST if config is wanted else _SLOW
    try:
        yield
    finally:
        del tuner._bench
        vars(tuner).update(own)
        tuner.cache, tuner.best_config = cache, best


def launched(tuner: Any, config: Any) -> bool:
    """Whether the last launch of ``tuner`` was of ``config``."""
    return getattr(tuner, "best_config", None) is config


def unusable(error: BaseException) -> bool:
    """Whether an autotuner passes over a configuration that raises this: too large, or excluded."""
    names = {"OutOfResources", "CompileTimeAssertionFailure", "PTXASError"}
    return any(kind.__name__ in names for kind in type(error).__mro__)


@contextmanager
def as_chosen(found: Sequence[Any]) -> Iterator[None]:
    """Within, each autotuner goes on with the configuration that it launched last."""
    with ExitStack() as stack:
        for tuner in found:
            best = getattr(tuner, "best_config", None)
            if best is not None:
                stack.enter_context(pinned(tuner, best))
        yield


def distinct(tuner: Any, interpreted: bool) -> list[Any]:
    """Its configurations; to the interpreter those with the same meta-parameters are one."""
    if not interpreted:
        return list(tuner.configs)
    kept: dict[str, Any] = {}
    for config in tuner.configs:
        kept.setdefault(repr(sorted(config.kwargs.items())), config)
    return list(kept.values())
