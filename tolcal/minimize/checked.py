"""Checks without a tolerance as lines of a script: what `measure.checks` looks at, for one kernel.

A script leaves out fewer elements than a measurement (those of which the reference itself does not
keep a relation), so what fails there fails here.
"""

from __future__ import annotations

import textwrap

from tolcal import cases
from tolcal.measure import configs
from tolcal.model import DTYPES, RELATIONS, Case, Kernel, Op, Record, Relation

#: A launch in guarded memory, instead of a plain one, which the heap may not survive.
GUARDED = """
    class _Guarded(torch.overrides.TorchFunctionMode):
        # Memory between zones of bytes that no kernel writes.
        ZONE, BYTE = 2**16, 0xA7

        def __init__(self):
            super().__init__()
            self.zones, self.filled = [], []

        def place(self, x, filled=True):
            width = x.element_size()
            count = width * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride())))
            memory = torch.full(
                (count + 2 * self.ZONE,), self.BYTE, dtype=torch.uint8, device=x.device
            )
            self.zones += [memory[: self.ZONE], memory[self.ZONE + count :]]
            inside = memory[self.ZONE : self.ZONE + count]
            if filled:  # with what lies between its elements, too
                raw = torch.empty(0, dtype=torch.uint8, device=x.device)
                start = width * x.storage_offset()
                inside.copy_(raw.set_(x.untyped_storage())[start : start + count])
                between = torch.ones(count, dtype=torch.bool, device=x.device)
                starts = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
                for dim, stride in enumerate(x.stride()):
                    along = torch.arange(x.shape[dim], device=x.device) * stride
                    starts += along.reshape([-1 if d == dim else 1 for d in range(x.dim())])
                bytes_of = torch.arange(width, device=x.device)
                between[(width * starts.reshape(-1, 1) + bytes_of).reshape(-1)] = False
                self.filled.append((inside, inside.clone(), between))
            return inside.view(x.dtype).as_strided(x.shape, x.stride(), 0)

        def __torch_function__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            empty = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
            full = ("zeros", "zeros_like", "new_zeros", "ones", "full", "full_like", "new_full")
            if func.__name__ in empty + full and made.numel() and "out" not in (kwargs or {}):
                return self.place(made, func.__name__ in full)
            return made

        def stray(self):
            count = sum(int((zone != self.BYTE).sum()) for zone in self.zones)
            return count + sum(int(((now != was) & own).sum()) for now, was, own in self.filled)
"""


def broken(op: Op, record: Record) -> Relation | None:
    """Which relation a record breaks: that which is farthest beyond its units; None if none is."""
    declared = {r.kind: r for r in op.relations}
    found = []
    for kind in RELATIONS:
        value = getattr(record.checks, kind) if record.checks else None
        one = declared.get(kind, Relation(kind, (), (), configs.UNITS))
        if value is not None and value > one.units:
            found.append((value / one.units if one.units else float("inf"), one))
    return max(found, key=lambda far: far[0])[1] if found else None


def batch(op: Op, kernel: Kernel, record: Record, copied: str) -> str:
    """The first row alone, and all but it; "" where that can't be written down."""
    shapes = [*(spec.shape for spec in op.inputs.values()), op.output]
    dim = op.batch
    if dim is None or any(e.startswith(f"{dim}/") for shape in shapes for e in shape):
        return ""
    axes = {n: s.shape.index(dim) for n, s in op.inputs.items() if dim in s.shape}
    axis, size = op.output.index(dim), dict(record.case.dims)[dim]
    differs, common, allowed = "(_part != _rows) & ~(_part.isnan() & _rows.isnan())", "", ""
    if in_loops(kernel, record):
        differs += f" & ~((_part - _rows).abs() <= _most.narrow({axis}, _start, _count))"
        common = (
            f"{_common(op, record, copied)}\n\n\n"
            "# A CPU's vector loops may round an element in another way where it lies elsewhere.\n"
            "_ref, _scale = _evaluated(_inputs)\n"
            f"_most = _gap_at(_ref) + {_rounding(record)!r} * _scale.max()\n"
        )
        allowed = " (by more than {float(_most.max()):.3g})"
    return (
        f"{common}# The first row alone and all but it must be what they are among the others.\n"
        f"_axes = {axes}\n"
        "_wrong = 0\n"
        f"for _start, _count in ((0, 1), (1, {size - 1})):\n"
        "    _some = {\n"
        "        name: x.narrow(_axes[name], _start, _count) if name in _axes else x\n"
        "        for name, x in _inputs.items()\n"
        "    }\n"
        f"    _part = run(**{{name: {copied} for name, x in _some.items()}}).double()\n"
        f"    _rows = _first.double().narrow({axis}, _start, _count)\n"
        f"    _wrong += int(({differs}).sum())\n"
        f"assert not _wrong, f'{{_wrong}} elements depend on how many rows there are{allowed}, 0 "
        "allowed'"
    )


def relation(op: Op, kernel: Kernel, record: Record, one: Relation, copied: str) -> str:
    """Both sides of a relation, and what they may be apart; "" where that can't be written down.

    The script has ``_sensitivity`` and its ``_signs``, which `batch` of `in_loops` needs as well.
    """
    kind = one.kind
    shapes = [*(spec.shape for spec in op.inputs.values()), op.output]
    if any(e.partition("/")[0] in one.dims and "/" in e for shape in shapes for e in shape):
        return ""
    units, loops = one.units, "0.0"
    if kind == "permutation" and in_loops(kernel, record):
        units, loops = max(units, 1.0), f"{_rounding(record)!r} * _scale.max()"
    u = record.roundoff
    fine = max(u * 2.0 ** (-2 if units else -12), 2.0**-45) * max(units, 1.0)
    sides = textwrap.dedent(_sides(op, record.case, one)).strip()
    return (
        f"{_common(op, record, copied)}\n\n\n# {_SAID[kind]}\n{sides}\n"
        f"_slack = _slack + {loops}\n"
        f"_alike = (_ours == _theirs) | (_ours.isnan() & _theirs.isnan())\n"
        "# Where the reference itself does not keep it, nothing is asked of the kernel.\n"
        f"_kept = (_expected - _kept_by).abs() <= {fine!r} * _scale\n"
        "_kept |= (_expected == _kept_by) | (_expected.isnan() & _kept_by.isnan())\n"
        f"_most = {units!r} * {u!r} * _scale" + (" + _slack" if units else "") + "\n"
        "_apart = (_ours - _theirs).abs()\n"
        "_wrong = ~_alike & _kept & ~(_apart <= _most)\n"
        "_by = torch.where(_wrong, _apart.nan_to_num(torch.inf), -1.0)\n"
        "_at = tuple(int(i) for i in torch.unravel_index(_by.argmax(), _by.shape))\n"
        "assert not _wrong.any(), (\n"
        f"    f'{{int(_wrong.sum())}} of {{_wrong.numel()}} elements break {kind}, '\n"
        "    f'the worst at {list(_at)}: {_ours[_at]:.9g} and {_theirs[_at]:.9g}; '\n"
        "    f'observed {_apart[_at]:.3g} apart, {_most[_at]:.3g} allowed'\n)"
    )  # fmt: skip


def in_loops(kernel: Kernel, record: Record) -> bool:
    """Whether an element's place is in its bits: plain torch on a CPU."""
    return record.run.environment.device_class == "cpu" and not kernel.uses_triton


def _common(op: Op, record: Record, copied: str) -> str:
    form = DTYPES[op.output_dtype or record.case.dtype]
    text = _COMMON.format(copied=copied, emin=form.emin, less=form.precision - 1)
    return textwrap.dedent(text).strip()


def _rounding(record: Record) -> float:
    """`measure.relations.of_loops`, of the largest element."""
    return max(64.0 * record.roundoff, 8.0 * DTYPES[record.case.dtype].roundoff)


_COMMON = """
    def _launched(inputs):
        return run(**{{name: {copied} for name, x in inputs.items()}}).double().clone()


    def _evaluated(inputs):
        # The reference, and |ref| + sigma.
        wide = {{
            name: (x.double() if x.is_floating_point() else x.long()).contiguous()
            for name, x in inputs.items()
        }}
        ref = reference(**wide)
        size = ref.abs() + _sensitivity(wide, ref)
        return ref, torch.where(size.isfinite(), size, 0.0)


    def _gap_at(ref):
        # The spacing of the output's dtype.
        power = ((ref.contiguous().view(torch.int64) >> 52) & 0x7FF) - 1023
        power = power.clamp(min={emin}) - {less}
        gap = ((power.clamp(min=-1022) + 1023) << 52).view(torch.float64)
        return torch.where(ref.isfinite(), gap, 0.0)
"""
_SAID = {
    "shift": "f(x + c) = f(x)",
    "sums": "The sums over the last axis.",
    "scale_invariant": "f(4x) = f(x)",
    "scale_equivariant": "f(4x) = 4 f(x)",
    "odd": "f(-x) = -f(x)",
    "linear": "f(x) = f(a) + f(x - a)",
    "permutation": "Inputs in another order give the output in that order.",
    "configs": "Every configuration of an autotuned kernel gives the same.",
}
_WHOLE = """
    _theirs = _first.double()
    _kept_by, _scale = _evaluated(_inputs)
    _slack = _gap_at(_kept_by)
"""
_SHIFT = """
    import math

    _wide = {{name: _inputs[name].double() for name in {inputs}}}
    _use = {{name: x.isfinite() & (x.abs() < {most}) for name, x in _wide.items()}}
    _c = max(float(torch.where(_use[name], x.abs(), 0.0).max()) for name, x in _wide.items())
    _c = max(2.0 ** (math.frexp(_c or 1.0)[1] - 1), {least})
    _lower, _upper = dict(_inputs), dict(_inputs)
    for _name, x in _wide.items():
        # b, which is near x, and b + c are both numbers of the dtype.
        _form = torch.finfo(_inputs[_name].dtype)
        _size = (torch.where(_use[_name], x.abs(), 0.0) + _c) * 2
        _step = torch.ldexp(torch.full_like(_size, _form.eps), torch.frexp(_size)[1] - 1)
        _low = torch.where(_use[_name], torch.round(x / _step) * _step, x)
        _high = torch.where(_use[_name], _low + _c, x)
        _lower[_name], _upper[_name] = (y.to(_inputs[_name].dtype) for y in (_low, _high))
    _ours, _theirs = _launched(_upper), _launched(_lower)
    (_kept_by, _scale), (_expected, _moved) = _evaluated(_lower), _evaluated(_upper)
    _scale, _slack = (_scale + _moved) / 2, _gap_at(_kept_by)
"""
_LINEAR = """
    _a, _b = dict(_inputs), dict(_inputs)
    for _name in {inputs}:
        x = _inputs[_name]
        _ordinal = torch.arange(x.numel(), device=x.device).reshape(x.shape)
        _chosen = (((_ordinal + 1) * 0x9E3779B1) >> 15) & 1 == 1
        _zero = torch.zeros((), device=x.device).to(x.dtype)
        _a[_name], _b[_name] = torch.where(_chosen, x, _zero), torch.where(_chosen, _zero, x)
    _ours = _launched(_a) + _launched(_b)
    (_one, _one_scale), (_two, _two_scale) = _evaluated(_a), _evaluated(_b)
    _expected, _scale = _one + _two, _scale + _one_scale + _two_scale
    _slack = (_slack + _gap_at(_one) + _gap_at(_two)) / 2
"""
_SUMS = """
    _ours, _expected = _theirs.sum(-1), _kept_by.sum(-1)
    _theirs = _kept_by = torch.full_like(_expected, {to})
    _scale, _slack = _scale.sum(-1), _slack.sum(-1) / 2
"""
_MAPPED = """
    _moved = {{
        name: (x.double() * {factor}).to(x.dtype) if name in {inputs} else x
        for name, x in _inputs.items()
    }}
    _ours, _expected = _launched(_moved) / {back}, _evaluated(_moved)[0] / {back}
"""
_PERMUTED = """
    def _turned(x, axes, back=False):
        for axis in axes:
            by = max(1, x.shape[axis] // 2 - 1 | 1)
            x = x.roll(-by if back else by, axis)
        return x


    _axes = {axes}
    _moved = {{name: _turned(x, _axes[name]) for name, x in _inputs.items()}}
    _ours = _turned(_launched(_moved), {out}, back=True)
    _expected = _turned(_evaluated(_moved)[0], {out}, back=True)
"""
_CONFIGS = """
    from triton.runtime.autotuner import Autotuner

    _usual, _counts = Autotuner.run, []


    def _one(tuner, *args, **kwargs):
        # Of its configurations the one whose turn it is.
        all_of = tuner.configs
        _counts.append(len(all_of))
        tuner.configs = all_of[min(_turn, len(all_of) - 1) :][:1]
        try:
            return _usual(tuner, *args, **kwargs)
        finally:
            tuner.configs = all_of


    Autotuner.run, _turn, _ours, _expected = _one, 0, _theirs, _kept_by
    while _turn == 0 or _turn < max(_counts, default=0):
        with _Poison():
            _made = _launched(_inputs)
        _worse = ~((_made - _theirs).abs() <= (_ours - _theirs).abs())
        _ours = torch.where(_worse & ~(_made.isnan() & _theirs.isnan()), _made, _ours)
        _turn += 1
"""


def _sides(op: Op, case: Case, one: Relation) -> str:
    """Lines that make both sides, the reference's, |ref| + sigma and the rounding of outputs."""
    names = sorted(one.inputs)
    whole = textwrap.dedent(_WHOLE)
    if one.kind == "shift":
        forms = [DTYPES[cases.dtype_of(op.inputs[name], case)] for name in names]
        most = min(form.max for form in forms) / 8
        least = 2.0 ** (max(form.emin for form in forms) + 8)
        return textwrap.dedent(_SHIFT.format(inputs=names, most=most, least=least))
    if one.kind == "linear":
        return whole + textwrap.dedent(_LINEAR.format(inputs=names)).lstrip()
    if one.kind == "sums":
        return whole + textwrap.dedent(_SUMS.format(to=one.to)).lstrip()
    if one.kind == "configs":
        return whole + textwrap.dedent(_CONFIGS).lstrip()
    if one.kind == "permutation":
        axes = {n: _axes(s.shape, one.dims) for n, s in op.inputs.items()}
        text = _PERMUTED.format(axes=axes, out=_axes(op.output, one.dims))
        return whole + textwrap.dedent(text).lstrip()
    factor = -1.0 if one.kind == "odd" else 4.0
    back = 1.0 if one.kind == "scale_invariant" else factor
    text = _MAPPED.format(factor=factor, inputs=names, back=back)
    return whole + textwrap.dedent(text).lstrip()


def _axes(shape: tuple[str, ...], dims: tuple[str, ...]) -> list[int]:
    return [axis for axis, entry in enumerate(shape) if entry in dims]
