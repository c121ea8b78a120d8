"""A failing case as a Python script of its own: kernel, reference, inputs, bound, assert.

What it judges is the definition in ``stats.definition`` written out for one output. Nothing of
op.toml gets into it but numbers, dtypes and names as string literals; the sources are the user's.
"""

from __future__ import annotations

import ast
import base64
import builtins
import textwrap
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tolcal import __version__, cases, imports
from tolcal.minimize import checked, values
from tolcal.minimize.failure import Failure
from tolcal.model import DTYPES, Case, InputSpec, Kernel, Op, Record, TolcalError, Values, one_line

#: Elements that are written out as numbers; more of them are drawn again, or packed.
LITERALS = 64
MOST_SOURCE = 2**18
MOST_PACKED = 2**17
#: How every script begins, so that a command knows one that it may write over.
FIRST = "# A failing case of a GPU kernel, by tolcal"

Files = Mapping[str, str]  # path as imported -> source; the first is the one that is asked for


def write(
    op: Op,
    kernel: Kernel,
    record: Record,
    failed: Failure | None,
    tolerance: Values | float | None,
    given: values.Values | None = None,
) -> str:
    """The script, which ends with an AssertionError (or as the kernel does) while it fails.

    Args:
        record: of the case; its environment says what device the script asks for.
        failed: how, None if it does not.
        tolerance: what holds on that device, in units of the op's roundoff, or a hand-picked atol
            on |out - rounded reference|; None: the script only runs the kernel.
        given: inputs as patterns; None: as the case draws them.

    Raises:
        TolcalError: if sources or inputs can't be put into one file.
    """
    if record.case.layout not in ("contiguous", *_LAYOUTS):
        raise TolcalError(f"no script can lay inputs out as {record.case.layout!r}")
    sources = {
        "run": _files(Path(kernel.path)),
        "reference": _files(Path(op.reference_path)),
    }
    further = _further(op, kernel, record, failed, isinstance(tolerance, Values))
    judged = tolerance is not None or any("reference(" in lines for lines in further)
    body = _inputs(op, record.case, given) + (
        _only_run(op, record, failed, further) if tolerance is None else
        _judge(op, record, failed, tolerance, further)
    )  # fmt: skip
    parts = [_head(op, kernel, record, failed), _imports_of(record, [*sources.values()])]
    wanted = {name: files for name, files in sources.items() if judged or name == "run"}
    if _mergeable([*wanted.values()], body):
        for name, files in wanted.items():
            parts.append(f"# --- {_TITLES[name]} {'-' * (88 - len(_TITLES[name]))}")
            parts.append(next(iter(files.values())).strip("\n"))
    else:
        parts.append(textwrap.dedent(_LOADER).strip())
        for name, files in wanted.items():
            table = "".join(f"    {path!r}: {_text(code)},\n" for path, code in files.items())
            parts.append(f"# --- {_TITLES[name]}\n{name} = _load({name!r}, {{\n{table}}})")
    parts.append("# --- the case " + "-" * 76)
    parts += body
    text = "\n\n".join(parts) + "\n"
    ast.parse(text)  # never hand out what is no Python
    return text


_TITLES = {"run": "the kernel", "reference": "the reference, in fp64"}


def _head(op: Op, kernel: Kernel, record: Record, failed: Failure | None) -> str:
    case = record.case
    layout = "" if case.layout == "contiguous" else f", layout {case.layout}"
    said = failed.text if failed else "it passes"
    lines = (
        f"{kernel.name} on {op.name} {case.dtype} {case.dims_text}{layout}:",
        said,
        f"Seen on {record.run.environment.text}.",
        f"tolcal {__version__} wrote this; it needs torch, what the kernel imports, and no tolcal.",
    )
    return "\n".join([FIRST, *(f"# {one_line(line, 400)}" for line in lines)])


def _imports_of(record: Record, sources: list[Files]) -> str:
    if record.run.environment.device_class != "cpu":
        return 'import torch\n\nDEVICE = "cuda"'
    tuned = any("autotune" in text for files in sources for text in files.values())
    return (
        "import os\n\n"
        'os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported\n'
        "import torch\n\n"
        'DEVICE = "cpu"\ntorch.set_num_threads(1)'
    ) + (f"\n{_TUNED}" if tuned else "")


#: As `measure.configs` has it.
_TUNED = """\
# The interpreter has no clock: of its configurations an autotuned kernel takes the first.
import triton.runtime.autotuner

triton.runtime.autotuner.Autotuner._bench = lambda *_, **__: [1.0] * 3"""


# --- sources --------------------------------------------------------------------------------


def _files(path: Path) -> Files:
    """A file and the local modules that it imports, by the paths they are imported by."""
    root = imports.repository(path)
    found = imports.of(path, root)
    folders = [path.absolute().parent, *([root / "src", root] if root else [])]
    named: dict[str, str] = {}
    for file, raw in found.files.items():
        folder = next((f for f in folders if file.is_relative_to(f)), None)
        if folder is None:
            raise TolcalError(f"{path}: imports {file}, which is not of its repository")
        name = file.relative_to(folder).as_posix()
        if name in named:
            raise TolcalError(
                f"{path}: imports two modules {name}, so they do not fit into one script; rename "
                "one"
            )
        try:
            named[name] = raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError:
            raise TolcalError(f"{file}: not UTF-8, so no script can be made of it") from None
    size = sum(map(len, named.values()))
    if size > MOST_SOURCE:
        raise TolcalError(
            f"{path}: with the {len(named) - 1} local modules that it imports it is {size} "
            f"characters, at most {MOST_SOURCE} fit into a script"
        )
    return named


def _mergeable(sources: list[Files], ours: list[str]) -> bool:
    """Whether the sources can stand one after another in a file and still mean the same."""
    texts = [*(next(iter(files.values())) for files in sources)]
    if any(len(files) > 1 for files in sources):
        return False
    if any(word in text for text in texts for word in ("__", "import *", "coding:", "coding=")):
        return False  # __future__, __name__, __file__: of a module of its own
    known: dict[str, object] = dict.fromkeys(dir(builtins), builtins)
    known |= {"DEVICE": "ours", "os": ("os", None)}
    for text in (*texts, "\n".join(ours)):
        for name, what in _names(ast.parse(text)).items():
            if known.setdefault(name, what) != what:
                return False
    return True


def _names(tree: ast.Module) -> dict[str, object]:
    """What a module binds: an import by what it is of, anything else by an object of its own."""
    found: dict[str, object] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or top] = (top, None)
            return
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = (node.module, alias.name)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = object()
            # What is inside binds names of its own, but for those that it says are the module's.
            for inner in ast.walk(node):
                if isinstance(inner, ast.Global):
                    found.update((name, object()) for name in inner.names)
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found[node.id] = object()
        if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found[node.name] = object()
        if isinstance(node, ast.MatchMapping) and node.rest:
            found[node.rest] = object()
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def _text(source: str) -> str:
    """A source as a string literal that is still readable, if it can be."""
    plain = all(c == "\n" or c.isprintable() for c in source)
    if plain and "'''" not in source and not source.endswith(("'", "\\")):
        return f"r'''{source}'''"
    lines = "".join(f"        {line!r}\n" for line in source.splitlines(keepends=True))
    return f"(\n{lines}    )"


_LOADER = """
    import importlib.util
    import pathlib
    import sys
    import tempfile

    _folders = []


    def _load(_name, _files):
        # As files, since Triton reads the source of its kernels from them.
        _folders.append(tempfile.TemporaryDirectory())
        folder = pathlib.Path(_folders[-1].name)
        for path, source in _files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(source.encode("utf-8"))
        sys.path.insert(0, str(folder))
        spec = importlib.util.spec_from_file_location("_of_" + _name, folder / next(iter(_files)))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        sys.path.remove(str(folder))
        for name in list(sys.modules):  # the other source may import modules of the same names
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(folder)) and name != spec.name:
                del sys.modules[name]
        return getattr(module, _name)
"""


# --- inputs ---------------------------------------------------------------------------------

_WORDS = """
    def _words(key, count):
        # SplitMix64 as a counter-based generator: 64 random bits an element.
        z = torch.arange(1, count + 1) * -7046029254386353131 + key
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
        z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
        return z ^ ((z >> 31) & 0x1FFFFFFFF)
"""
_DRAWN = """
    def _drawn(key, shape, dtype, low, high):
        # Uniform from low to high, by way of fp32 into narrower dtypes.
        unit = ((_words(key, torch.Size(shape).numel()) >> 11) & (2**53 - 1)).double() * 2.0**-53
        value = low + (high - low) * unit
        return (value if dtype == torch.float64 else value.float()).to(dtype).reshape(shape)
"""
_SPARSE = """
    def _sparse(shape, dtype, numbers):
        # All 0 but the elements numbered here, in C order.
        x = torch.zeros(torch.Size(shape).numel(), dtype=torch.float64)
        for at, number in numbers.items():
            x[at] = number
        return x.to(dtype).reshape(shape)
"""
_PACKED = """
    def _packed(shape, dtype, text):
        import base64, zlib
        raw = bytearray(zlib.decompress(base64.b64decode(text)))
        return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)
"""

_LAID = """
    def _around(x, shape):
        # Memory of nobody's: what a kernel reads of it shows.
        if x.is_floating_point():
            return torch.full(shape, torch.nan, device=x.device).to(x.dtype)
        return torch.full(shape, torch.iinfo(x.dtype).max, dtype=x.dtype, device=x.device)


    def _laid(x):
        # {layout}
        x = x.contiguous()
        {code}
"""
#: As `cases` defines them, of a tensor x that has dims.
_LAYOUTS = {
    "transposed": "return x.mT.contiguous().mT if x.dim() > 1 else x.clone()",
    "sliced": "return _around(x, (*x.shape[:-1], x.shape[-1] + 16))[..., : x.shape[-1]].copy_(x)",
    "strided": "return _around(x, (*x.shape[:-1], 2 * x.shape[-1]))[..., ::2].copy_(x)",
    "expanded": "buffer = _around(x, x.shape)\n"
    "        buffer[:1] = x[:1]\n"
    "        return buffer.as_strided(x.shape, (0, *buffer.stride()[1:]))",
    "offset": "buffer = _around(x, (1 + x.numel() + 16,))\n"
    "        return buffer[1 : 1 + x.numel()].view(x.shape).copy_(x)",
}


def _inputs(op: Op, case: Case, given: values.Values | None) -> list[str]:
    """The code that makes ``_inputs``, a dictionary of tensors."""
    entries, helpers = [], {_WORDS}
    arrays = given
    for name, spec in op.inputs.items():
        shape = cases.shape_of(spec.shape, case)
        count = int(np.prod(shape, dtype=np.int64))
        simple = case.profile == "default" and spec.dtype is None
        simple = simple and not cases.leaves(spec, case.dtype)
        if given is None and simple and count > LITERALS:
            key = cases.signed(cases.stream(case, name))
            made = (f"_drawn({key}, {shape}, torch.{case.dtype}, {spec.low!r}, {spec.high!r})",
                    _DRAWN)  # fmt: skip
        else:
            arrays = arrays or cases.inputs_numpy(op, case)
            made = _literal(arrays[name], spec, case, shape)
        entries.append(f"    {name!r}: {made[0]}.to(DEVICE),\n")
        helpers |= {made[1]}
    code = [textwrap.dedent(h).strip() for h in (_WORDS, _DRAWN, _SPARSE, _PACKED) if h in helpers]
    code.append("_inputs = {\n" + "".join(entries) + "}")
    if case.layout != "contiguous":
        laid = _LAID.format(layout=case.layout, code=_LAYOUTS[case.layout])
        code.append(textwrap.dedent(laid).strip())
        code.append("_inputs = {name: _laid(x) for name, x in _inputs.items()}")
    return code


def _literal(
    array: values.Array, spec: InputSpec, case: Case, shape: tuple[int, ...]
) -> tuple[str, str]:
    """An expression that gives these very bits, and the helper it needs."""
    dtype = cases.dtype_of(spec, case)
    numbers = values.decode(array, dtype).reshape(-1)
    others = np.flatnonzero((numbers != 0) | np.signbit(numbers))
    mostly = len(numbers) > 8 and len(numbers) > 3 * len(others)
    if len(numbers) <= LITERALS and np.isnan(numbers).any():
        width = array.dtype.itemsize
        bits = np.ascontiguousarray(array).view(f"i{width}").reshape(shape).tolist()
        return f"torch.tensor({bits}, dtype=torch.int{8 * width}).view(torch.{dtype})", ""
    if len(numbers) <= LITERALS and np.isfinite(numbers).all() and not mostly:
        exact = (np.asarray(array) if spec.is_integer else numbers).reshape(shape).tolist()
        if dtype in ("float32", "float64") or spec.is_integer:
            return f"torch.tensor({exact}, dtype=torch.{dtype})", ""
        return f"torch.tensor({exact}).to(torch.{dtype})", ""
    few = len(others) <= LITERALS and np.isfinite(numbers).all()
    if few and not (spec.is_integer and np.abs(numbers).max() > 2**53):
        some = {int(at): float(numbers[at]) for at in others}
        return f"_sparse({shape}, torch.{dtype}, {some})", _SPARSE
    text = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
    if len(text) > MOST_PACKED:
        raise TolcalError(
            f"{case.dims_text}: {len(numbers)} input elements of profile {case.profile!r} are too "
            "many for a script; `tolcal minimize` makes them fewer"
        )
    lines = "".join(f"        '{text[at : at + 88]}'\n" for at in range(0, len(text), 88))
    return f"_packed({shape}, torch.{dtype}, (\n{lines}    ))", _PACKED


# --- the verdict ----------------------------------------------------------------------------

_POISON = """
    class _Poison(torch.overrides.TorchFunctionMode):
        # An element that the kernel never writes is nan, and not what memory happens to hold.
        def __init__(self, fill=torch.nan):
            super().__init__()
            self.fill = fill

        def __torch_function__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            names = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
            if func.__name__ in names and made.is_floating_point():
                made.fill_(self.fill)
            return made
"""
_SIGMA = """
    def _sensitivity(wide, ref):
        # How far an output element moves when every input is off by one unit of relative error:
        # the rms over 32 random sign vectors.
        total = torch.zeros_like(ref)
        for k in range(32):
            moved = {
                name: x * (1 + 2.0**-26 * (1 - 2 * ((_signs[name] >> k) & 1)).double())
                if name in _signs else x
                for name, x in wide.items()
            }
            total += ((reference(**moved) - ref) / 2.0**-26).square()
        sigma = (total / 32).sqrt()
        return torch.where(sigma.isfinite(), sigma, 0.0)
"""


def _outside(op: Op) -> str:
    """Which output elements depend on inputs outside the domain, as `measure.domain` has it."""
    domains = "".join(
        f"    {name!r}: {_domain(name, spec)},\n"
        for name, spec in op.inputs.items()
        if not spec.is_integer
    )
    kept = " & x.isfinite()" if op.nonfinite else ""
    return (
        "# Elements that depend on inputs outside the op's domain are not judged: those that turn\n"
        "# nan with these inputs, but for those that are nan with the real and usual ones, too.\n"
        f"_domains = {{\n{domains}}}\n"
        "_spoilt, _tame = dict(_wide), dict(_wide)\n"
        "for _name, (_least, _most, _low, _high, _key) in _domains.items():\n"
        "    x = _wide[_name]\n"
        f"    _bad = ~((x >= _least) & (x <= _most)){kept}\n"
        "    _spoilt[_name] = torch.where(_bad, torch.nan, x)\n"
        "    _unit = ((_words(_key, x.numel()) >> 11) & (2**53 - 1)).double() * 2.0**-53\n"
        "    _usual = (_low + (_high - _low) * _unit).reshape(x.shape).to(DEVICE)\n"
        "    _tame[_name] = torch.where(_bad, _usual, x)\n"
        "_own = _ref.isnan() & reference(**_tame).isnan()\n"
        "_outside = reference(**_spoilt).isnan() & ~_own"
    )


def _domain(name: str, spec: InputSpec) -> tuple[float | int, ...]:
    """Ends of the domain and of the usual range, and the key of usual values."""
    most = DTYPES["float64"].max
    low, high = spec.domain or (-most, most)  # infinite: every finite number
    ends = max(low, -most), min(high, most)
    return (*ends, spec.low, spec.high, cases.signed(cases.usual_key(name)))


#: Checks that a script shows by lines right after the launch.
_SHOWN = {
    "check inputs_changed": "_changed = sum(\n"
    "    int((_bits(_given[name]) != _bits(x)).sum())\n"
    "    for name, x in _inputs.items() if name not in {mutates}\n"
    ")\n"
    "assert not _changed, f'{{_changed}} bytes of inputs written to, 0 allowed'",
    "check unrepeatable": "_again = run(**{{name: {copied} for name, x in _inputs.items()}})\n"
    "_changed = int((_bits(_again) != _bits(_out)).sum())\n"
    "assert not _changed, f'{{_changed}} bytes differ between two launches, 0 allowed'",
    "check unwritten": "_given = {{name: {copied} for name, x in _inputs.items()}}\n"
    "with _Poison(1.0):\n"
    "    _again = run(**_given).double()\n"
    "_missing = int((_out.double().isnan() & (_again == 1.0)).sum())\n"
    "assert not _missing, f'{{_missing}} elements that nothing is written to, 0 allowed'",
    "check stray": "_stray = _guard.stray()\n"
    "assert not _stray, f'{{_stray}} bytes written outside of tensors, 0 allowed'",
}
_BITS = """
    def _bits(x):
        return x.contiguous().reshape(-1).view(torch.uint8)
"""


def _further(
    op: Op, kernel: Kernel, record: Record, failed: Failure | None, has_sigma: bool
) -> list[str]:
    """What a script ends with that shows a broken relation, or rows that depend on others.

    ``has_sigma``: whether it has `_SIGMA` and its signs anyway.
    """
    way = failed.way if failed else ""
    copied = _copied(record.case)
    sigma = [] if has_sigma else [textwrap.dedent(_SIGMA).strip(), _signs(op)]
    if way == "check batch":
        text = checked.batch(op, kernel, record, copied)
        loops = sigma if checked.in_loops(kernel, record) else []
        return [*loops, text] if text else []
    if way == "check broken":
        one = checked.broken(op, record)
        text = checked.relation(op, kernel, record, one, copied) if one else ""
        poison = [textwrap.dedent(_POISON).strip()] if one and one.kind == "configs" else []
        return [*poison, *sigma, text] if text else []
    return []


def _copied(case: Case) -> str:
    return "x.clone()" if case.layout == "contiguous" else "_laid(x)"


def _signs(op: Op) -> str:
    """Lines that draw the sign vectors of sigma."""
    keys = "".join(
        f"    {name!r}: {cases.signed(cases.key('sigma', 1, name))},\n"
        for name, spec in op.inputs.items()
        if not spec.is_integer
    )
    return (
        f"_signs = {{\n{keys}}}\n"
        "_signs = {\n"
        "    name: _words(key, _inputs[name].numel()).reshape(_inputs[name].shape).to(DEVICE)\n"
        "    for name, key in _signs.items()\n"
        "}"
    )


def _run_lines(op: Op, record: Record, failed: Failure | None, further: list[str]) -> list[str]:
    case, way = record.case, failed.way if failed else ""
    shape = cases.shape_of(op.output, case)
    copied = _copied(case)
    lines = []
    call = f"_given = {{name: {copied} for name, x in _inputs.items()}}\n_out = run(**_given)"
    unseen = way.startswith(("check ", "crashed in check ")) and way not in _SHOWN
    if (unseen and not further) or way == "outside":
        raise TolcalError(
            f"no script shows {way.removeprefix('check ')!r} ({failed.text if failed else ''}); "
            "`tolcal replay` does"
        )
    if way == "timeout":
        lines.append(
            "import faulthandler\n\nfaulthandler.dump_traceback_later(10, exit=True)  # it hangs"
        )
    if way == "crashed SystemExit":  # which with status 0 would look like a pass
        call = call.replace("_out = ", "try:\n    _out = ")
        call += "\nexcept SystemExit as _end:\n    raise AssertionError(\n"
        call += "        f'run() ends the process with status {_end.code or 0}'\n    ) from None"
    if way in ("kinds", "check unwritten"):
        lines.append(textwrap.dedent(_POISON).strip())
        call = call.replace("_out = ", "with _Poison():\n    _out = ")
    if way == "check stray":
        lines.append(textwrap.dedent(checked.GUARDED).strip())
        call = f"_guard = _Guarded()\n{call}".replace(copied, "_guard.place(x)")
        call = call.replace("_out = ", "with _guard:\n    _out = ")
    if further:
        call += "\n_first = _out.clone()"
    dtype = op.output_dtype or case.dtype
    lines.append(
        f"torch.set_grad_enabled(False)\n{call}\n"
        f"_got = (tuple(_out.shape), _out.dtype)\n"
        f"assert _got == ({shape}, torch.{dtype}), f'run() returned {{_got}}'"
    )
    if way in _SHOWN:
        if "_bits" in _SHOWN[way]:
            lines.append(textwrap.dedent(_BITS).strip())
        lines.append(_SHOWN[way].format(mutates=sorted(op.mutates), copied=copied))
    return lines


def _only_run(op: Op, record: Record, failed: Failure | None, further: list[str]) -> list[str]:
    return [*_run_lines(op, record, failed, further), *further, "print('run() returned')"]


def _judge(
    op: Op,
    record: Record,
    failed: Failure | None,
    tolerance: Values | float,
    further: list[str],
) -> list[str]:
    case = record.case
    form = DTYPES[op.output_dtype or case.dtype]
    by_hand = isinstance(tolerance, float)
    lines = [] if by_hand else [textwrap.dedent(_SIGMA).strip()]
    lines += _run_lines(op, record, failed, further)
    if isinstance(tolerance, float):
        begin = (
            "# An element passes if it is off the rounded reference by at most the hand-picked\n"
            f"# atol.\n_atol = {tolerance!r}\n"
        )
    else:
        begin = (
            "# An element passes if what it is off by beyond the rounding of its dtype is at most\n"
            "# atol + scaled_tol * u * (|ref| + sigma).\n"
            f"_atol, _scaled_tol, _u = {tolerance.atol!r}, {tolerance.scaled_tol!r}, "
            f"{record.roundoff!r}\n{_signs(op)}\n"
        )
    lines.append(
        begin + "_wide = {\n"
        "    name: (x.double() if x.is_floating_point() else x.long()).contiguous()\n"
        "    for name, x in _inputs.items()\n"
        "}\n"
        "_ref = reference(**_wide)\n"
        + ("" if by_hand else "_sigma = _sensitivity(_wide, _ref)\n")
        + "_out = _out.double()\n"
        f"# The spacing of {form.name} at each element of the reference.\n"
        "_power = ((_ref.contiguous().view(torch.int64) >> 52) & 0x7FF) - 1023\n"
        f"_power = _power.clamp(min={form.emin}) - {form.precision - 1}\n"
        "_gap = ((_power.clamp(min=-1022) + 1023) << 52).view(torch.float64)\n"
        "_rounded = torch.round(_ref / _gap) * _gap\n"
        f"_rounded = torch.where(_rounded.abs() > {form.max!r}, _rounded * torch.inf, _rounded)\n"
        "_finite = _out.isfinite() & _rounded.isfinite()\n"
        "_alike = (_out == _rounded) | (_out.isnan() & _rounded.isnan())"
    )
    if not form.has_infinity:
        lines.append(
            "# This dtype has no infinity: nan and the largest number both are an overflow.\n"
            f"_alike |= _rounded.isinf() & (_out.isnan() | (_out == _ref.sign() * {form.max!r}))"
        )
    if record.outside is not None and record.outside.count:
        lines.append(_outside(op))
    error = "_residual = ((_out - _ref).abs() - _gap / 2).clamp(min=0)\n"
    error += "_allowed = _atol + _scaled_tol * _u * (_ref.abs() + _sigma)\n"
    if by_hand:
        error = "_residual = (_out - _rounded).abs()\n_allowed = torch.full_like(_ref, _atol)\n"
    lines.append(
        error
        + "_wrong = torch.where(_finite, _residual > _allowed, ~_alike)\n"
        + ("_wrong &= ~_outside\n" if record.outside is not None and record.outside.count else "")
        + "_by = torch.where(_wrong, torch.where(_finite, _residual / _allowed, torch.inf), -1.0)\n"
        "_at = tuple(int(i) for i in torch.unravel_index(_by.argmax(), _by.shape))\n"
        "assert not _wrong.any(), (\n"
        "    f'{int(_wrong.sum())} of {_wrong.numel()} elements are wrong, the worst at "
        "{list(_at)}: '\n"
        "    f'{_out[_at]:.9g}, {_ref[_at]:.9g} expected; observed {_residual[_at]:.3g} "
        f"{'off the' if by_hand else 'beyond'} '\n"
        f"    f'{'rounded reference' if by_hand else 'rounding'}, {{_allowed[_at]:.3g}} allowed'\n"
        ")"
    )
    elements = np.prod(cases.shape_of(op.output, case))
    if isinstance(tolerance, Values) and tolerance.bias_tol is not None and elements >= 1024:
        lines.append(
            "_signed = torch.where(_finite, _out - _ref, 0.0)\n"
            "_counts = (_signed != 0) & (_ref != 0)\n"
            "_bias = float((_ref.sign() * _signed)[_counts].sum() / _signed[_counts].abs().sum())\n"
            f"_leans = abs(_bias) > {tolerance.bias_tol!r} and bool((_residual > 0).any())\n"
            "assert _counts.sum() < 1024 or not _leans, (\n"
            f"    f'the errors lean to one side: bias {{_bias:+.3f}} observed, "
            f"{tolerance.bias_tol!r} allowed'\n)"
        )
    return [*lines, *further, "print('every element is within its bound')"]
