"""The configurations of autotuned Triton kernels: which were launched, and one at a time.

`triton.autotune` times every configuration on the first arguments of a kind (its key) and keeps the
fastest: which of them a test has run depends on the machine. Here each launch of an autotuner, in
whatever way a kernel got hold of it, is recorded, and gets the configuration that is asked for. It
goes its usual way (pruning, hooks), only its benchmark is taken from it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

Run = Callable[..., Any]  # Autotuner.run
#: What configurations may differ by where op.toml says nothing: they may sum in another order.
UNITS = 64.0
#: What stands for the time of a configuration that is passed over.
_NEVER = float("inf")


class Launch(NamedTuple):
    """What an autotuner launched."""

    configs: Sequence[Any]  # that it has to choose from
    key: Any  # that it keeps its choice for
    config: Any


class Launches:
    """A context that records what autotuners with several configurations launch.

    ``made`` has the launches of each autotuner, in order, by what `_name` calls it.

    Args:
        like: earlier launches, whose configurations are taken again; None: each autotuner chooses.
        by_place: an autotuner's n-th launch takes the configuration of its n-th one there, as is
            right for arguments of other keys; else one of the same key goes first.
        instead: an autotuner's name, and the configuration that it takes wherever its
            pruning leaves it and it can be launched.
    """

    now: Launches | None = None  # the innermost

    def __init__(
        self,
        like: Launches | None = None,
        by_place: bool = False,
        instead: tuple[Hashable, Any] | None = None,
    ) -> None:
        self.made: dict[Hashable, list[Launch]] = {}
        self.like, self.by_place, self.instead = like, by_place, instead
        self._outer: Launches | None = None

    def __enter__(self) -> Launches:
        self._outer, Launches.now = Launches.now, self
        return self

    def __exit__(self, *_: object) -> None:
        Launches.now = self._outer

    def wanted(self, tuner: Hashable, key: Any) -> list[Any]:
        """The configurations to prefer in the next launch of ``tuner``, the best first."""
        found = []
        if self.instead is not None and self.instead[0] == tuner:
            found.append(self.instead[1])
        earlier = [] if self.like is None else self.like.made.get(tuner, [])
        if earlier:
            there = earlier[min(len(self.made.get(tuner, [])), len(earlier) - 1)]
            if there.key != key and not self.by_place:
                there = next((one for one in reversed(earlier) if one.key == key), there)
            found.append(there.config)
        return found


def _name(tuner: Any) -> Hashable:
    """What an autotuner has in common with one that a kernel builds anew in its next launch."""
    inner = tuner
    while hasattr(inner, "fn"):
        inner = inner.fn
    return getattr(inner, "__code__", inner), tuple(map(str, tuner.configs))


class _Cache(dict[Any, Any]):
    """An autotuner's choices by key, which tells the key that it was asked for last."""

    asked: Any = None

    def __contains__(self, key: object) -> bool:
        self.asked = key
        return super().__contains__(key)

    def __getitem__(self, key: Any) -> Any:
        self.asked = key
        return super().__getitem__(key)


def install(interpreted: bool) -> None:
    """Records the launches of all autotuners of this process from now on, if there is a Triton.

    Before a kernel is loaded, which may keep a bound method. Interpreted autotuners, which have no
    clock to choose by, take the first configuration that their pruning leaves and that can be
    launched.
    """
    try:
        kind = importlib.import_module("triton.runtime.autotuner").Autotuner
    except Exception:
        return  # there is none, or a broken one, as a kernel that needs it will say
    original: Run = kind.run
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if len(tuner.configs) < 2:
            return original(tuner, *args, **kwargs)
        name, now = _name(tuner), Launches.now or Launches()
        free = not now.wanted(name, None)
        if free and not interpreted:
            with _recorded(tuner, name, now, keep=True, unfit=None):
                return original(tuner, *args, **kwargs)
        unfit: list[Any] = []
        while True:
            try:
                with _recorded(tuner, name, now, keep=free, unfit=unfit):
                    return original(tuner, *args, **kwargs)
            except Exception as error:
                tried = getattr(tuner, "best_config", None)
                if tried is None or tried in unfit or not unusable(error):
                    raise
                unfit.append(tried)

    kind.run = run


@contextmanager
def _recorded(
    tuner: Any, name: Hashable, now: Launches, *, keep: bool, unfit: Sequence[Any] | None
) -> Iterator[None]:
    """Within, a launch of ``tuner``, which is called ``name``, is one of ``now``.

    Args:
        keep: whether the configuration is that of its key for good.
        unfit: what is passed over where another is left; None: the autotuner's own clock chooses.
    """
    own = {n: vars(tuner)[n] for n in ("_bench", "cache_results") if n in vars(tuner)}
    cache = tuner.cache
    choices = tuner.cache = _Cache(cache if keep else {})

    def bench(*_: Any, config: Any, **__: Any) -> list[float]:
        assert unfit is not None
        wanted = now.wanted(name, choices.asked)
        rank = wanted.index(config) if config in wanted else len(wanted)
        return [_NEVER if config in unfit else float(rank)] * 3  # of equals the first is taken

    if unfit is not None:
        tuner.cache_results, tuner._bench = False, bench
    try:
        yield
    finally:
        if unfit is not None:
            del tuner._bench
        vars(tuner).update(own)
        tuner.cache = cache
    if keep:
        cache.update(choices)
    launch = Launch(tuner.configs, choices.asked, tuner.best_config)
    now.made.setdefault(name, []).append(launch)


def unusable(error: BaseException) -> bool:
    """Whether an autotuner passes over a configuration that raises this: too large, or excluded.

    In the interpreter a `static_assert` is an assertion of Python's; a kernel's own is none.
    """
    names = {"OutOfResources", "CompileTimeAssertionFailure", "PTXASError"}
    return any(
        any(kind.__name__ in names for kind in type(one).__mro__)
        or (isinstance(one, AssertionError) and _raised_in(one) == "_new_static_assert")
        for one in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _raised_in(error: BaseException) -> str:
    """The name of the function that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_name


def distinct(configs: Sequence[Any], interpreted: bool) -> list[Any]:
    """All of them; to the interpreter those with the same meta-parameters are one."""
    if not interpreted:
        return list(configs)
    kept: dict[str, Any] = {}
    for config in configs:
        kept.setdefault(repr(sorted(config.kwargs.items())), config)
    return list(kept.values())
