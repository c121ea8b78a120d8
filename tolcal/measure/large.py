"""Cases of profile ``large``: whole tensors for the kernel, slices of them for the reference.

What goes wrong beyond 2^31 elements or 2^32 bytes is an index, so it is the rows on both sides of
these that are judged, the first, the last, and some by the case's seed. Rows lie along the op's
`batch` dim, else the first of its output: what such a row holds must not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from tolcal import cases
from tolcal.measure.context import Context, Poison
from tolcal.measure.room import GIB, TooLargeError, count_of, free_bytes, item_size
from tolcal.model import Case, Kernel, Op, TolcalError

#: Output elements that the reference is computed for, about, and elements of inputs that it gets
#: for these: a row that is summed has few of the one and many of the other.
JUDGED_ELEMENTS, JUDGED_INPUTS = 2**22, 2**26
#: Elements of all tensors of a case beyond which the interpreter would take days.
INTERPRETED_ELEMENTS = 2**24
#: Where indices of a kind end: in elements, and in bytes.
INDEX_ENDS, BYTE_ENDS = (2**31, 2**32), (2**32,)
#: Elements that are drawn at a time.
CHUNK = 2**24


class LargeContext(Context):
    """Its ``case``, ``inputs``, ``ref`` and ``sigma`` are those of the judged rows alone.

    TooLargeError if memory does not hold the whole, TolcalError if the op has no such rows.
    """

    def __init__(
        self,
        op: Op,
        case: Case,
        device: torch.device,
        reference: Callable[..., torch.Tensor],
        again: bool = False,
    ) -> None:
        self.whole_case = case
        self.dim = sliced_dim(op)
        self.rows = judged_rows(op, case, self.dim)
        check_room(op, case, device, len(self.rows))
        self.whole: dict[str, torch.Tensor] = {}  # drawn, and not yet given to a kernel
        dims = tuple((n, len(self.rows) if n == self.dim else size) for n, size in case.dims)
        super().__init__(op, msgspec.structs.replace(case, dims=dims), device, reference, again)

    def drawn(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
        """The rows' inputs, the same widened, and the hash sums of the whole."""
        sums = torch.zeros(len(self.op.inputs), dtype=torch.int64, device=self.device)
        self.whole = self.draw(sums)
        inputs = {
            name: self.sliced(self.op.inputs[name].shape, x) for name, x in self.whole.items()
        }
        return inputs, {name: cases.widened(x) for name, x in inputs.items()}, sums

    def draw(self, sums: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The whole inputs. ``sums``: what to add their hash sums to."""
        found = {}
        place = {name: i for i, name in enumerate(sorted(self.op.inputs))}
        for name, spec in self.op.inputs.items():
            shape = cases.shape_of(spec.shape, self.whole_case)
            dtype: torch.dtype = getattr(torch, cases.dtype_of(spec, self.whole_case))
            x = torch.empty(shape, dtype=dtype, device=self.device)
            flat = x.view(-1)
            for at in range(0, flat.numel(), CHUNK):
                count = min(CHUNK, flat.numel() - at)
                part = cases.part_torch(self.op, name, self.whole_case, self.device, at, count)
                flat[at : at + count] = part
                if sums is not None:
                    sums[place[name]] += cases.hash_sum_torch(name, part, at)
            found[name] = x
        return found

    def sliced(self, shape: tuple[str, ...], x: torch.Tensor) -> torch.Tensor:
        """The judged rows of a tensor of this shape; all of one that has no rows."""
        if self.dim not in shape:
            return x
        rows = torch.tensor(self.rows, device=x.device)
        return _as_bits(x).index_select(shape.index(self.dim), rows).view(x.dtype)

    def run(self, kernel: Kernel, function: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The judged rows of the kernel's output on the whole. TooLargeError if memory ends."""
        # Drawn again for each kernel: a copy to keep would take as much memory once more.
        inputs, self.whole = self.whole or self.draw(), {}
        try:
            with Poison():
                whole = self.launch(function, inputs, self.whole_case)
            out = self.sliced(self.op.output, whole)
            del whole
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise TooLargeError(f"the kernel needs more memory than there is: {error}") from None
        finally:
            del inputs
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # other workers share the device
        self.outputs[kernel.name] = out
        return out


def _as_bits(x: torch.Tensor) -> torch.Tensor:
    """8-bit floats as integers: torch does not select of them everywhere."""
    return x.view(torch.uint8) if x.element_size() == 1 else x


def sliced_dim(op: Op) -> str:
    """The dim that rows of a large case lie along. TolcalError if the op has none."""
    dim = op.batch or (op.output[0] if op.output else "")
    shapes = {"the output": op.output} | {name: spec.shape for name, spec in op.inputs.items()}
    for name, shape in shapes.items():
        divided = [entry for entry in shape if entry.partition("/")[0] == dim and "/" in entry]
        if divided or shape.count(dim) > 1:
            raise TolcalError(
                f"{op.path}/op.toml: profile large judges rows along {dim}, of which {name} has "
                f"{list(shape)}; name a `batch` that each shape has whole and once, or drop "
                "[sizes.large]"
            )
    for name, spec in op.inputs.items():
        if spec.below == dim:
            raise TolcalError(
                f"{op.path}/op.toml: profile large judges rows along {dim}, of which {name} holds "
                "numbers: the reference has few of these rows; name another `batch`, or drop "
                "[sizes.large]"
            )
    if dim not in op.output:
        raise TolcalError(
            f"{op.path}/op.toml: profile large judges rows of the output, {list(op.output)}, which "
            f"has no {dim or 'dim'}; drop [sizes.large]"
        )
    return dim


def judged_rows(op: Op, case: Case, dim: str) -> list[int]:
    """Ascending: first, last, those on both sides of where indices end, and some by the seed."""
    size = dict(case.dims)[dim]
    tensors = [(op.output, op.output_dtype or case.dtype)]
    tensors += [(s.shape, cases.dtype_of(s, case)) for s in op.inputs.values() if dim in s.shape]
    found = [0, size - 1]
    for symbols, dtype in tensors:
        shape = cases.shape_of(symbols, case)
        axis = symbols.index(dim)
        stride, total = count_of(shape[axis + 1 :]), count_of(shape)
        ends = (*INDEX_ENDS, *(end // item_size(dtype) for end in BYTE_ENDS))
        found += [i // stride % size for end in ends if end < total for i in (end - 1, end)]
    a_row, *of_inputs = (count_of(cases.shape_of(symbols, case)) // size for symbols, _ in tensors)
    room = JUDGED_INPUTS // max(1, sum(of_inputs))
    most = min(size, max(2, min(JUDGED_ELEMENTS // a_row, room)))
    words = cases.words_numpy(cases.key("rows", case.seed), 2 * most)
    found += [int(word) % size for word in words]
    return sorted(list(dict.fromkeys(found))[:most])


def check_room(op: Op, case: Case, device: torch.device, rows: int) -> None:
    """TooLargeError, with what is needed and what is free, if the case should not be run."""
    dim = sliced_dim(op)
    size = dict(case.dims)[dim]
    shapes = [(op.output, op.output_dtype or case.dtype)]
    shapes += [(spec.shape, cases.dtype_of(spec, case)) for spec in op.inputs.values()]
    whole = judged = elements = 0
    for symbols, dtype in shapes:
        count = count_of(cases.shape_of(symbols, case))
        elements += count
        whole += count * item_size(dtype)
        judged += count // size * rows if dim in symbols else count
    # Beside the whole: fp64 of what is judged, swayed, and the words of what is being drawn.
    need = whole + 8 * 8 * judged + 8 * 8 * min(CHUNK, elements)
    free = free_bytes(device)
    says = f"{case.dims_text} needs {need / GIB:.1f} GiB, {free / GIB:.1f} GiB are free"
    if need > free:
        raise TooLargeError(says)
    if device.type == "cpu" and elements > INTERPRETED_ELEMENTS:
        raise TooLargeError(f"{says}, but the interpreter would take days; a GPU runs it")
