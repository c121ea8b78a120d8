"""Known-wrong kernels whose output is right: one check catches each, and nothing else does."""

from __future__ import annotations

import msgspec
import pytest
from tests_support import CORPUS

from tolcal import corpus, measure
from tolcal.model import RELATION_MAX, Record

OPS = corpus.load(CORPUS)
#: What each fails where its fault shows, and the dims of a case where it does.
FAULTS = {
    "geglu_vector_tail_buggy": ("stray", {"B": (3,), "H": (7,)}),
    "fused_add_rmsnorm_in_place_buggy": ("inputs_changed", {"B": (3,), "H": (33,)}),
    "fp8_gemm_split_k_buggy": ("broken", {"M": (2,), "K": (129,), "N": (64,)}),
    # Only where programs run at once: tests/gpu/test_oracle.py.
    "rmsnorm_weight_grad_atomic_buggy": (None, {"B": (17,), "H": (7,)}),
}


def records(name: str) -> list[Record]:
    """A contiguous case of a kernel and of its control, in each dtype that is interpreted."""
    (op,) = corpus.select(OPS, [name])
    dims = FAULTS[name][1]
    kernels = tuple(msgspec.structs.replace(kernel, dims=dims) for kernel in op.kernels)
    request = measure.Request(
        ops=(msgspec.structs.replace(op, kernels=kernels),), dtypes=("float32", "float16"),
        device="cpu", gate=1, explore=0, workers=1, profiles=("default",),
    )  # fmt: skip
    return [v for v in measure.measure(request, CORPUS) if isinstance(v, Record)]


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_one_check_catches_it_alone(name: str) -> None:
    """The output has its control's values, so no tolerance can tell; no other check fails."""
    check = FAULTS[name][0]
    found = records(name)
    assert len(found) == 4
    for record in found:
        assert (record.status, record.case.layout) == ("ok", "contiguous")
        assert record.checks is not None
        wrong = record.kernel == name
        assert record.checks.failed == ((check,) if wrong and check else ())
        if check:
            assert record.same_as_control is (True if wrong else None)
    relations = [r.checks.configs for r in found if r.kernel == name and r.checks]
    assert set(relations) == {RELATION_MAX if check == "broken" else None}
