"""What kernels set of torch for the whole process: to each its own, and to nobody else.

A default dtype, a grad mode or TF32 that one kernel sets, at its import or in ``run``, would
change what the reference and the kernels after it compute. So each finds what it has left itself,
as if it were alone, and the process is as it was when it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Values = tuple[Any, ...]


class Settings:
    """The settings of this process as they are now, which it goes back to."""

    def __init__(self) -> None:
        self.usual = _read()

    def own(self, load: Callable[[], Callable[..., torch.Tensor]]) -> Callable[..., torch.Tensor]:
        """What ``load`` gives, which sees and leaves the settings of nobody but these two."""
        left = self.usual

        @contextmanager
        def apart() -> Iterator[None]:
            nonlocal left
            _write(self.usual, left)
            try:
                yield
            finally:
                left = _read()
                _write(left, self.usual)

        with apart():
            function = load()

        def alone(*args: Any, **kwargs: Any) -> torch.Tensor:
            with apart():
                return function(*args, **kwargs)

        return alone


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _set_device(device: torch.device) -> None:
    # A mode is what sets one, and slows every call down: where it is the usual one, none.
    torch.set_default_device(None)
    if torch.get_default_device() != device:
        torch.set_default_device(device)


_MATMUL = torch.backends.cuda.matmul
#: How each is read and set, in the order in which they are set.
_EACH: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_device, _set_device),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_num_threads, torch.set_num_threads),
    # The smallest subnormal number, which is 0 to a thread that flushes them.
    (lambda: sys.float_info.min * sys.float_info.epsilon == 0, torch.set_flush_denormal),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _attribute(_MATMUL, "fp32_precision"),  # of newer versions, beside the one above
    _attribute(_MATMUL, "allow_fp16_reduced_precision_reduction"),
    _attribute(_MATMUL, "allow_bf16_reduced_precision_reduction"),
)


def _read() -> Values:
    return tuple(_value(read) for read, _ in _EACH)


def _value(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception:  # an older version; set by both of two ways; a kernel has undone torch
        return None


def _write(now: Values, wanted: Values) -> None:
    for (_, write), is_so, value in zip(_EACH, now, wanted, strict=True):
        # What can't be read is left alone: the next reference finds out what has become of it.
        if is_so != value and None not in (is_so, value):
            write(value)
