"""``tolcal.testing`` on a device: it computes there, and says what it says on a CPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from tolcal import testing, tolerances
from tolcal.model import DTYPES, AllClose, Tolerance, Values
from tolcal.testing import arrays, judging

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_it_judges_as_on_a_cpu(name: str) -> None:
    """The same elements, worst and index; sums may differ in their last digits."""
    generator = torch.Generator().manual_seed(7)
    ref = torch.randn(257, 1025, generator=generator, dtype=torch.float64)
    out = (ref * (1 + 1e-3 * torch.randn(ref.shape, generator=generator))).to(getattr(torch, name))
    out[3, 5], ref[200, 1] = torch.nan, torch.inf
    cell = Tolerance(1e-4, 512.0, AllClose(1e-4, 1e-3), bias_tol=0.3)
    found = [
        judging.judge(
            arrays.Compared(out.to(d), ref.to(d), None, "wide", DTYPES[name], {}), cell, 2.0**-24
        )
        for d in ("cpu", "cuda")
    ]
    assert found[0].bias == pytest.approx(found[1].bias, abs=1e-9)
    assert repr(msgspec.structs.replace(found[1], bias=found[0].bias)) == repr(found[0])
    assert found[0].mismatches == 2


def test_the_override_of_the_device_holds(tmp_path: Path) -> None:
    """A cell that is looser on this device class alone, and a reference that lies on the CPU."""
    x = torch.ones(64, device="cuda")
    device = arrays.device_class(x)
    assert tolerances.DEVICE_CLASS.fullmatch(device)
    path = tmp_path / "tolerances.toml"
    pair = AllClose(1e-6, 1e-6)
    on = {device: Values(1.0, 4.0, AllClose(1.0, 1e-6))}
    tolerances.write(path, {("double", "float32"): Tolerance(1e-6, 4.0, pair, on=on)})
    call = {"op": "double", "tolerances": path}
    testing.assert_close(x * 2.5, lambda x: x * 2, inputs=[x], **call)
    testing.assert_close(x * 2.5, torch.full((64,), 2.0, dtype=torch.float64), **call)
    with pytest.raises(AssertionError, match=rf"\({device}\)"):
        testing.assert_close(x * 4, lambda x: x * 2, inputs=[x], **call)
    with pytest.raises(AssertionError, match=r"Mismatched elements: 64 / 64"):
        testing.assert_close((x * 2.5).cpu(), lambda x: x * 2, inputs=[x.cpu()], **call)
