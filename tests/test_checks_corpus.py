"""Every control of the corpus passes its checks, on small cases, by the interpreter."""

from __future__ import annotations

import msgspec
import pytest
from tests_support import CORPUS

from tolcal import corpus, measure
from tolcal.model import Op, Record

OPS = {op.name: op for op in corpus.load(CORPUS)}
#: Sizes of each dim that tests have the time for.
FEW = 70


def small(op: Op) -> Op:
    """The op's controls alone, without the largest sizes."""
    controls = tuple(
        msgspec.structs.replace(
            k,
            dims={
                n: tuple(s for s in sizes if s <= FEW) or sizes[:1] for n, sizes in k.dims.items()
            },
        )
        for k in op.kernels
        if k.role == "control"
    )
    return msgspec.structs.replace(op, kernels=controls)


@pytest.mark.parametrize("name", sorted(OPS))
def test_controls_pass_their_checks(name: str) -> None:
    """No check fails in three cases, in float32 and float16, where hardware would not either."""
    op = small(OPS[name])
    dtypes = tuple(d for d in ("float32", "float16") if d in op.dtypes)
    request = measure.Request(
        ops=(op,), dtypes=dtypes or op.dtypes, device="cpu", gate=3, explore=0, workers=1
    )
    records = [v for v in measure.measure(request, CORPUS) if isinstance(v, Record)]
    ran = [r for r in records if r.status != "skipped"]
    assert {r.status for r in ran} <= {"ok"}, [r.reason for r in ran]
    failed = [(r.id, r.case.dtype, r.case.dims_text, r.checks) for r in ran
              if r.checks is None or r.checks.failed]  # fmt: skip
    assert failed == []
