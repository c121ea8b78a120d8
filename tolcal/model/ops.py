"""The corpus: ops, their kernels, and the cases that they are run on."""

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from tolcal.model.base import digest

Role = Literal["control", "buggy"]


#: Formats that inputs can have beside these.
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def limits_of(integer: str) -> tuple[int, int]:
    """The least number of an integer dtype, and the first that is too large for it."""
    bits = int(integer.lstrip("uint"))
    return (0, 2**bits) if integer.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))


#: How inputs can be drawn; `cases` says what each is. The published ones come first.
PROFILES = (
    "default", "boundary", "regular", "nan_injected", "adversarial",
    "normal", "shifted", "tiny", "huge", "sparse", "constant_rows", "sorted", "one_hot",
    "integers", "subnormal", "edges", "large",
)  # fmt: skip


#: How inputs can lie in memory; `cases` says what each is.
LAYOUTS = ("contiguous", "transposed", "sliced", "strided", "expanded", "offset")


class InputSpec(msgspec.Struct, frozen=True):
    """One input tensor: its dims by name, and the range that profile ``default`` draws from.

    A dim ``"K/32"`` is ceil(K/32). Integers are drawn from ``low`` to ``high`` (excluded), or to
    the size of dim ``below``.
    """

    shape: tuple[str, ...]
    low: float = -10.0
    high: float = 10.0
    #: within which the op promises accuracy; None: every finite number
    domain: tuple[float, float] | None = None
    dtype: str | None = None  # None: the case's
    below: str | None = None
    steady: bool = False  # drawn as in profile ``default`` in every profile

    @property
    def is_integer(self) -> bool:
        """Whether its values are integers, which have no rounding and no sensitivity."""
        return self.dtype in INTEGERS

    @property
    def spans(self) -> range:
        """The sizes that dim ``below`` may have: there are numbers below, and the dtype has all."""
        return range(max(0, int(self.low)) + 1, limits_of(str(self.dtype))[1] + 1)


RelationKind = Literal[
    "shift",
    "sums",
    "scale_invariant",
    "scale_equivariant",
    "permutation",
    "odd",
    "linear",
    "configs",
]


RELATIONS: tuple[RelationKind, ...] = get_args(RelationKind)


class Relation(msgspec.Struct, frozen=True):
    """A metamorphic relation that op.toml declares: what must hold between outputs.

    ``units``: how far the two sides may be apart, in u*(|ref| + sigma) beyond a gap of the
    output's dtype; 0 is bit for bit.
    """

    kind: RelationKind
    inputs: tuple[str, ...]  # that are shifted, scaled, negated or added to
    dims: tuple[str, ...]  # of permutation
    units: float
    to: float | None = None  # of sums


class Kernel(msgspec.Struct, frozen=True):
    """One implementation of an op. A buggy one names the control it corrupts and how."""

    name: str
    role: Role
    path: str  # of the file, as found
    dims: Mapping[str, tuple[int, ...]]
    source_hash: str
    uses_triton: bool
    corrupts: str | None = None
    fault: str | None = None
    line: int = 1  # of `def run`
    subtle: bool = False  # of a buggy one: op.toml says that its fault is small or rare
    #: dims whose sizes are its own (or its control's): it is run on no others
    own: tuple[str, ...] = ()
    batch: bool = True  # whether its rows must not depend on how many there are, as its op says
    #: of a buggy one: the check without a tolerance that finds it; no tolerance can, or by chance
    #: alone, since its output is its control's or no less accurate
    found_by: str | None = None

    def refuses(self, case: "Case") -> str:
        """Why it is not to be run on ``case``, by its own dims; "" if it is."""
        for name, size in case.dims:
            if name in self.own and size not in self.dims[name]:
                sizes = ", ".join(map(str, self.dims[name]))
                return f"by op.toml {self.name} is run with {name} = {sizes} alone"
        return ""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a kernel is run on. The same case gives the same input bytes on every machine."""

    op: str
    dtype: str
    dims: tuple[tuple[str, int], ...]  # in op.toml's order, which messages keep
    profile: str
    layout: str
    seed: int  # 0 <= seed < 2^63

    @property
    def id(self) -> str:
        """16 hex digits; with the kernel's name before it, the id of a record."""
        dims = sorted(self.dims)
        return digest("case", self.op, self.dtype, dims, self.profile, self.layout, self.seed)

    @property
    def dims_text(self) -> str:
        """As in messages and files: ``B=2 S=7 H=1025``."""
        return " ".join(f"{name}={size}" for name, size in self.dims)


class Op(msgspec.Struct, frozen=True):
    """One folder of the corpus: contract, reference and kernels."""

    name: str
    summary: str
    dtypes: tuple[str, ...]
    compute_dtype: str
    inputs: Mapping[str, InputSpec]
    output: tuple[str, ...]
    legacy_atol: Mapping[str, float]
    reduction: str | None
    path: str
    reference_path: str
    op_hash: str
    reference_hash: str
    kernels: tuple[Kernel, ...]
    output_dtype: str | None = None  # None: the case's
    profiles: tuple[str, ...] = ("default",)  # what a run draws its inputs by
    excluded_profiles: tuple[str, ...] = ()  # what no run draws them by: it has no such inputs
    layouts: tuple[str, ...] = ("contiguous",)  # of inputs that its kernels must take
    batch: str | None = None  # a dim whose rows must not depend on how many there are
    mutates: tuple[str, ...] = ()  # inputs that a kernel may write to
    nonfinite: bool = False  # whether nan and infinities among inputs are inside its domain
    #: by profile, the dims whose sizes are others there
    sizes: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    relations: tuple[Relation, ...] = ()
    pinned: tuple[Case, ...] = ()  # regression cases, measured with the gate cases

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name; KeyError if there is none."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(name)
