"""A case whose inputs are given as values, not drawn: what a search has made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from tolcal import cases
from tolcal.measure.context import Context
from tolcal.model import Case, Op


class GivenContext(Context):
    """Its inputs hold the bytes of ``values`` (C order, in their own dtypes), in its layout."""

    def __init__(
        self,
        op: Op,
        case: Case,
        device: torch.device,
        reference: Callable[..., torch.Tensor],
        values: Mapping[str, bytes],
    ) -> None:
        self.values = values
        super().__init__(op, case, device, reference)

    def drawn(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
        """The given inputs in the case's layout, the same widened, their hash sums."""
        inputs = {}
        for name, spec in self.op.inputs.items():
            dtype: torch.dtype = getattr(torch, cases.dtype_of(spec, self.case))
            raw = torch.frombuffer(bytearray(self.values[name]), dtype=torch.uint8)
            x = raw.view(dtype).reshape(cases.shape_of(spec.shape, self.case)).to(self.device)
            inputs[name] = cases.lay_out(x, self.case.layout)
        wide = {name: cases.widened(x) for name, x in inputs.items()}
        return inputs, wide, cases.hash_sums_torch(inputs)
