"""The history: nothing lost, nothing changed, and damage that is named."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import random
import struct
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests_support import (
    CORPUS,
    DATA,
    ROOT,
    make_record,
    make_run,
    make_stats,
)

from tolcal import history
from tolcal.cli import main
from tolcal.history import columns, jsonlines
from tolcal.model import (
    DEVICE_CLASS,
    DTYPES,
    ENVELOPE_GRID,
    RELATION_MAX,
    RELATIONS,
    Case,
    Checks,
    Environment,
    ErrorStats,
    Outside,
    Record,
    Run,
    TolcalError,
)

# --- arbitrary records ----------------------------------------------------------------------

float32 = st.floats(width=32)  # NaN, infinities, subnormals and both zeros among them
count = st.integers(0, 2**62)
words = st.text(st.characters(codec="utf-8"), max_size=20)
#: What a run may say of its environment: printable, in any script.
printable = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=20)
name = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
hex16 = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
#: Of what is no honest record's a history refuses: falling envelopes, sizes that are none.
size = st.floats(0.0, width=32, allow_nan=False)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
points = st.tuples(*[size] * len(ENVELOPE_GRID)).map(lambda v: tuple(sorted(v, reverse=True)))
environments = st.builds(
    Environment,
    device=printable, device_class=st.from_regex(DEVICE_CLASS, fullmatch=True), vendor=name,
    driver=printable, runtime=printable,
    torch=printable, triton=printable,
    switches=st.lists(printable, max_size=3, unique=True).map(lambda s: tuple(sorted(s))),
)  # fmt: skip
stats_published = st.builds(
    ErrorStats,
    count=count, num_exceeding=st.none() | count, max_abs=size, mean_abs=float32,
    p50_abs=float32, p90_abs=float32, p99_abs=float32, max_rel=float32, mean_rel=float32,
    max_ulp=st.integers(0, 2**64 - 1), mean_ulp=float32,
    residual_max=st.none(), envelope=st.none(), envelope_abs=st.none(), scaled_max=st.none(),
    scaled_max_abs=st.none(), scale_quantiles=st.none(), scale_abs_quantiles=st.none(),
    bias=st.none(), bias_count=st.none(), nonfinite_mismatch=st.none(), ref_rms=st.none(),
    ref_max=st.none(),
)  # fmt: skip
stats_full = st.builds(
    ErrorStats,
    count=count, num_exceeding=st.none() | count, max_abs=size, mean_abs=float32,
    p50_abs=float32, p90_abs=float32, p99_abs=float32, max_rel=float32, mean_rel=float32,
    max_ulp=st.integers(0, 2**64 - 1), mean_ulp=float32,
    residual_max=size, envelope=points, envelope_abs=points, scaled_max=size,
    scaled_max_abs=size, scale_quantiles=st.tuples(*[finite] * 3),
    scale_abs_quantiles=st.tuples(*[finite] * 3), bias=st.floats(-1.0, 1.0, width=32),
    bias_count=count,
    nonfinite_mismatch=count, ref_rms=finite, ref_max=size,
)  # fmt: skip
cases = st.builds(
    Case,
    op=name, dtype=st.sampled_from(sorted(DTYPES)),
    dims=st.dictionaries(
        st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,3}", fullmatch=True), st.integers(1, 2**40 - 1),
        max_size=4,
    ).map(lambda d: tuple(d.items())),
    profile=name, layout=name, seed=st.integers(0, 2**63 - 1),
)  # fmt: skip


outsides = st.builds(Outside, count=count, mismatch=count, differing=st.none() | count)
apart = st.none() | st.floats(0.0, RELATION_MAX, width=32)
checked = st.builds(
    Checks,
    unwritten=count, stray=count, inputs_changed=count, unrepeatable=count,
    batch=st.none() | count, shift=apart, sums=apart, scale_invariant=apart,
    scale_equivariant=apart, permutation=apart, odd=apart, linear=apart, configs=apart,
    broken=st.none() | count,
    **{f"{kind}_judged": st.none() | count for kind in RELATIONS},
)  # fmt: skip


@st.composite
def runs_of_records(draw: st.DrawFn) -> list[Record]:
    """Some runs with some records each, in the order of a file: a run, then its records."""
    result = []
    for run_id in draw(st.lists(hex16, min_size=1, max_size=2, unique=True)):
        run = draw(
            st.builds(
                Run,
                id=st.just(run_id),
                seed=st.integers(0, 2**63 - 1), started=printable,
                session=st.just("") | hex16,
                origin=st.sampled_from(["local", "ingest", "pull_request", "import"]),
                commit=st.just("") | hex16, dirty=st.booleans(), tolcal=printable,
                device_uuid=printable,
                environment=environments,
            )
        )  # fmt: skip
        record = st.builds(
            Record,
            run=st.just(run), kernel=name, role=st.sampled_from(["control", "buggy"]),
            corrupts=st.none() | name, case=cases, case_set=st.sampled_from(["gate", "explore"]),
            status=st.sampled_from(["ok", "crashed", "timeout", "skipped"]), reason=words,
            input_hash=st.just("") | hex16, kernel_hash=st.just("") | hex16,
            reference_hash=st.just("") | hex16, op_hash=st.just("") | hex16,
            roundoff=st.sampled_from([2.0**-53, 2.0**-24, 2.0**-11, 2.0**-8]),
            stats=st.none() | stats_published | stats_full,
            same_as_control=st.none() | st.booleans(),
            outside=st.none() | outsides, checks=st.none() | checked,
        ).map(
            lambda r: msgspec.structs.replace(r, status="crashed" if r.stats is None else "ok")
        )  # fmt: skip
        unique = st.lists(
            record, min_size=1, max_size=3, unique_by=lambda r: (r.kernel, r.case.id, r.case_set)
        )
        result += draw(unique)
    return result


def bits(value: Any) -> Any:
    """``value`` with every float as its bit pattern (all NaNs alike), so that == is exact."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value)
    if isinstance(value, list | tuple):
        return [bits(v) for v in value]
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    return value


def plain(record: Record) -> Any:
    """Everything in a record, exactly comparable."""
    return bits(msgspec.to_builtins(record))


def write(path: Path, records: list[Record]) -> Path:
    """A records file: each run before its records."""
    with jsonlines.Writer(path) as writer:
        run = None
        for record in records:
            if record.run is not run:
                writer.write(record.run)
                run = record.run
            writer.write(record)
    return path


SLOW = settings(
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SLOW
@given(records=runs_of_records())
def test_json_lines_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    """Any records come back from JSON lines bit for bit, in their order."""
    path = write(tmp_path_factory.mktemp("j") / "r.jsonl.gz", records)
    assert [plain(r) for r in jsonlines.read(path)] == [plain(r) for r in records]


@SLOW
@given(records=runs_of_records())
def test_parquet_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    """Any records come back from a Parquet history bit for bit, in their order."""
    folder = tmp_path_factory.mktemp("p")
    assert history.add(folder, columns.from_records(records)) is not None
    table = history.read_table([folder])
    assert [plain(r) for r in columns.to_records(table)] == [plain(r) for r in records]


@SLOW
@given(records=runs_of_records(), shuffle=st.randoms(use_true_random=False))
def test_digest_is_of_the_set(records: list[Record], shuffle: random.Random) -> None:
    """The digest of a history is that of its set of records, whatever their order."""
    other = list(records)
    shuffle.shuffle(other)
    frames = [history.to_frame(columns.from_records(r)) for r in (records, other)]
    assert history.content_digest(frames[0]) == history.content_digest(frames[1])


def test_special_values_survive() -> None:
    """NaN, infinities, -0, subnormals and the largest ULP distance survive both forms."""
    stats = make_stats(
        max_abs=math.inf, mean_abs=math.nan, p50_abs=-0.0, p90_abs=2.0**-149, p99_abs=-math.inf,
        max_ulp=2**64 - 2, bias=-(2.0**-126),
    )  # fmt: skip
    record = make_record(stats=stats, reason="größer\n\u2028 \x00 ::error::")
    (back,) = columns.to_records(columns.from_records([record]))
    assert plain(back) == plain(record)
    line = json.loads(jsonlines.encode(record))["record"]["stats"]
    assert (line["max_abs"], line["mean_abs"], line["p99_abs"]) == ("inf", "nan", "-inf")


@pytest.mark.parametrize("field", ["max_abs", "bias", "envelope"])
def test_lossy_value_is_refused(field: str) -> None:
    """A statistic that float32 can't hold is a ValueError that names it: never rounded quietly."""
    value: Any = (0.1,) * len(ENVELOPE_GRID) if field == "envelope" else 0.1
    with pytest.raises(ValueError, match=rf"^{field}(_00)? = 0.1 is no float32 number"):
        columns.from_records([make_record(stats=make_stats(**{field: value}))])


# --- shards ---------------------------------------------------------------------------------


def some(count: int, start: int = 0, **changes: Any) -> list[Record]:
    return [make_record(seed=start + i, **changes) for i in range(count)]


def test_checks_of_an_older_version_say_not_what_they_were_judged_at(tmp_path: Path) -> None:
    """A shard without these columns is read: they are unknown."""
    checks = Checks(0, 0, 0, 0, odd=0.5, odd_judged=7, broken=0)
    table = columns.from_records([make_record(checks=checks)])
    names = [f"check_{kind}_judged" for kind in RELATIONS]
    pq.write_table(table.drop_columns(names), tmp_path / "h.parquet")
    (record,) = columns.to_records(history.read_table([tmp_path / "h.parquet"]))
    assert record.checks == msgspec.structs.replace(checks, odd_judged=None)


def seeds(folder: Path) -> list[int]:
    return sorted(history.read_table([folder])["seed"].to_pylist())


def tree(folder: Path) -> dict[str, str]:
    """Every file under ``folder`` and its hash."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_add_names_by_content_and_is_idempotent(tmp_path: Path) -> None:
    """A shard is named by its content; adding the same records again changes nothing."""
    first = history.add(tmp_path, some(3))
    assert first is not None
    assert first.stem == hashlib.sha256(first.read_bytes()).hexdigest()[:16]
    before = tree(tmp_path)
    assert history.add(tmp_path, some(3)) == first
    assert tree(tmp_path) == before
    assert set(before) == {first.name, "MANIFEST"}
    assert (tmp_path / "MANIFEST").read_text() == f"{first.stem} 3\n"


def test_adding_nothing_writes_nothing(tmp_path: Path) -> None:
    """No records make no shard and no folder."""
    assert history.add(tmp_path / "new", []) is None
    assert not (tmp_path / "new").exists()


def test_overlapping_shards_give_each_record_once(tmp_path: Path) -> None:
    """Shards that overlap after a retry give each record once; gate and explore are two."""
    history.add(tmp_path, some(4))
    history.add(tmp_path, some(4, start=2))
    history.add(tmp_path, some(1, case_set="gate"))
    assert seeds(tmp_path) == [0, 0, 1, 2, 3, 4, 5]
    assert len(list(tmp_path.glob("*.parquet"))) == 3
    again = history.read_table([tmp_path, tmp_path])
    assert again.num_rows == 7


def test_union_of_folder_parquet_and_records_file(tmp_path: Path) -> None:
    """Folders, single Parquet files and records files are read as one set."""
    history.add(tmp_path / "h", some(2))
    history.write_parquet(tmp_path / "one.parquet", columns.from_records(some(2, start=1)))
    write(tmp_path / "r.jsonl.gz", some(2, start=3))
    paths = [tmp_path / "h", tmp_path / "one.parquet", tmp_path / "r.jsonl.gz", tmp_path / "none"]
    assert sorted(history.read(paths)["seed"]) == [0, 1, 2, 3, 4]


def test_digest_is_independent_of_shards(tmp_path: Path) -> None:
    """One shard or three in another order: the same digest; one record more: another one."""
    history.add(tmp_path / "a", some(6))
    for start in (4, 0, 2):
        history.add(tmp_path / "b", some(2, start=start))
    digests = [history.content_digest(history.read([tmp_path / n])) for n in "ab"]
    assert digests[0] == digests[1]
    history.add(tmp_path / "b", some(1, start=6))
    assert history.content_digest(history.read([tmp_path / "b"])) != digests[0]


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    """Several processes that add at once lose neither a record nor a line of MANIFEST."""
    code = (
        "import sys; from pathlib import Path\n"
        "from tests_support import make_record\nfrom tolcal import history\n"
        "me = int(sys.argv[1])\nsys.stdin.read()\n"
        "for i in range(5):\n"
        "    history.add(Path('h'), [make_record(seed=100 * me + i)])\n"
        "    history.add(Path('h'), [make_record(seed=7)])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(n)], cwd=tmp_path, env=environment,
            stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for n in range(1, 4)
    ]  # fmt: skip
    for writer in writers:  # all have started: let them go
        assert writer.stdin is not None
        writer.stdin.close()
        writer.stdin = None
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    folder = tmp_path / "h"
    assert seeds(folder) == [7, *(100 * n + i for n in (1, 2, 3) for i in range(5))]
    listed = (folder / "MANIFEST").read_text().splitlines()
    assert {line.split()[0] for line in listed} == {p.stem for p in folder.glob("*.parquet")}
    assert all(len(line.split()) == 2 for line in listed)
    assert not list(folder.glob(".*.tmp"))


# --- damage ---------------------------------------------------------------------------------


def missing_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.parquet"))[0]
    number = (folder / "MANIFEST").read_text().split("\n").index(f"{shard.stem} 4") + 1
    shard.unlink()
    return (
        f"ROOT/{shard.name}: missing, but ROOT/MANIFEST:{number} lists it; restore the file, or "
        "remove that line if its records are to be given up"
    )


def damaged_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.parquet"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    now = hashlib.sha256(content).hexdigest()[:16]
    return (
        f"ROOT/{shard.name}: damaged: its content hashes to {now}, not to its name; restore it "
        "from a backup or artifact (nothing was changed)"
    )


def text_shard(folder: Path) -> str:
    content = b"no parquet\n"
    name = hashlib.sha256(content).hexdigest()[:16]
    (folder / f"{name}.parquet").write_bytes(content)
    return f"ROOT/{name}.parquet: unreadable or truncated Parquet ("


@pytest.mark.parametrize("damage", [missing_shard, damaged_shard, text_shard])
def test_damaged_history(tmp_path: Path, damage: Callable[[Path], str]) -> None:
    """A lost or damaged shard is one line that names it; reading changes nothing on disk."""
    history.add(tmp_path, some(4))
    history.add(tmp_path, some(4, start=4))
    expected = damage(tmp_path)
    before = tree(tmp_path)
    for question in (history.read, history.verify, history.ls):
        with pytest.raises(TolcalError) as caught:
            question([tmp_path])
        message = str(caught.value).replace(str(tmp_path), "ROOT")
        assert message.startswith(expected)
        assert "\n" not in message
    assert tree(tmp_path) == before


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_truncated_parquet_file(tmp_path: Path, keep: int) -> None:
    """A Parquet file cut anywhere, or text under that name, is one line that names the file."""
    path = tmp_path / "h.parquet"
    history.write_parquet(path, columns.from_records(some(4)))
    path.write_bytes(path.read_bytes()[:keep])
    before = tree(tmp_path)
    with pytest.raises(TolcalError) as caught:
        history.read([path])
    assert str(caught.value).startswith(f"{path}: unreadable or truncated Parquet (")
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before


def test_foreign_parquet(tmp_path: Path) -> None:
    """A Parquet file of another program is one line that says which column it lacks."""
    path = tmp_path / "h.parquet"
    table = columns.from_records(some(1))
    pq.write_table(table.drop_columns(["kernel", "seed"]), path)
    with pytest.raises(TolcalError) as caught:
        history.read([path])
    assert str(caught.value) == (
        f"{path}: no column 'kernel' (2 of {len(columns.SCHEMA)} lacking): not a tolcal history of "
        "this version; read it with the tolcal that wrote it, measure again, or import foreign "
        "results with `tolcal history import`"
    )


@pytest.mark.parametrize("name", ["h.parquet", "r.jsonl.gz", "notes.txt"])
def test_missing_or_unknown_file(tmp_path: Path, name: str) -> None:
    """A file that is not there, or of no known kind, is one line that names it."""
    with pytest.raises(TolcalError) as caught:
        history.read([tmp_path / name])
    assert str(caught.value).startswith(f"{tmp_path / name}: ")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.9999])
def test_cut_records_file(tmp_path: Path, share: float) -> None:
    """A records file cut inside a gzip member is one line that names it; nothing is used."""
    path = write(tmp_path / "r.jsonl.gz", some(50))
    content = path.read_bytes()
    path.write_bytes(content[: max(1, int(share * len(content)))])
    before = tree(tmp_path)
    with pytest.raises(TolcalError) as caught:
        history.read([path])
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "members",
    [0, 1],
)
def test_records_file_cut_between_members(tmp_path: Path, members: int) -> None:
    """A records file cut exactly between two gzip members is refused like any other cut."""
    path = write(tmp_path / "r.jsonl.gz", some(2 * jsonlines.MEMBER))
    content = path.read_bytes()
    starts = [0, content.index(b"\x1f\x8b\x08", 1)]
    path.write_bytes(content[: starts[members]])
    with pytest.raises(TolcalError):
        history.read([path])


def changed(**changes: Any) -> bytes:
    """A record's line with ``part__field=value`` put into it."""
    content = json.loads(jsonlines.encode(make_record()))
    for key, value in changes.items():
        *parts, last = key.split("__")
        place = content["record"]
        for part in parts:
            place = place[part]
        place[last] = value
    return json.dumps(content).encode() + b"\n"


RUN, RECORD = jsonlines.encode(make_run()), jsonlines.encode(make_record())
NOT_OURS = "not a line of a tolcal records file: "
UNUSED = "; nothing of the file was used, measure again or drop that line"
BAD_LINES: dict[str, tuple[list[bytes], int, str]] = {
    "no JSON": (
        [RUN, RECORD, b"{oops\n"], 3,
        f"{NOT_OURS}JSON is malformed: object keys must be strings (byte 1){UNUSED}",
    ),
    "unknown key": (
        [RUN, changed(colour=1)], 2,
        f"{NOT_OURS}Object contains unknown field `colour` - at `$.record`{UNUSED}",
    ),
    "unknown kind": (
        [RUN, b'{"recrod": {}}\n'], 2,
        f"{NOT_OURS}Object contains unknown field `recrod`{UNUSED}",
    ),
    "neither": ([b"{}\n"], 1, f"{NOT_OURS}expected either `run` or `record`{UNUSED}"),
    "wrong type": (
        [RUN, RECORD, changed(kernel=3)], 3,
        f"{NOT_OURS}Expected `str`, got `int` - at `$.record.kernel`{UNUSED}",
    ),
    "unknown status": (
        [RUN, changed(status="fine")], 2,
        f"{NOT_OURS}Invalid enum value 'fine' - at `$.record.status`{UNUSED}",
    ),
    "infinite count": (
        [RUN, changed(stats__count="inf")], 2,
        f"{NOT_OURS}Expected `int`, got `float` - at `$.record.stats.count`{UNUSED}",
    ),
    "short envelope": (
        [RUN, changed(stats__envelope=[0.0])], 2,
        f"{NOT_OURS}envelope has 1 points, {len(ENVELOPE_GRID)} expected{UNUSED}",
    ),
    "no UTF-8": (
        [RUN, RECORD.replace(b"softmax", b"s\xffftmax")], 2,
        f"{NOT_OURS}Invalid UTF-8 encoded string{UNUSED}",
    ),
    "over-long line": (
        [RUN, RECORD, changed(reason="x" * jsonlines.MAX_LINE)], 3,
        "over the limit of 65536 bytes a line and 20000000 lines: no records file of tolcal's",
    ),
    "record first": ([RECORD, RUN], 1, "a record before any run; measure again"),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("what", BAD_LINES)
def test_bad_line(tmp_path: Path, what: str, suffix: str) -> None:
    """A bad line is one line that names file, line and remedy; nothing on disk changes."""
    lines, number, expected = BAD_LINES[what]
    path = tmp_path / f"r{suffix}"
    content = b"".join(lines)
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    before = tree(tmp_path)
    with pytest.raises(TolcalError) as caught:
        history.read([path])
    assert str(caught.value) == f"{path}:{number}: {expected}"
    assert tree(tmp_path) == before


#: What an untrusted file may say and a reader must refuse.
TRICKS: dict[str, bytes] = {
    "no float32": changed(stats__max_abs=0.1),
    "roundoff no float32": changed(roundoff=0.1),
    "count over 63 bits": changed(stats__count=2**63),
    "ulp over 64 bits": changed(stats__max_ulp=2**64),
    "negative ulp": changed(stats__max_ulp=-1),
    "negative count": changed(stats__count=-1),
    "seed over 63 bits": changed(case__seed=2**63),
    "unknown dtype": changed(case__dtype="float17"),
    "dim with a space": changed(case__dims=[["B=2 S", 1]]),
    "negative dim": changed(case__dims=[["B", -1]]),
    "markup for a name": changed(kernel="@everyone"),
    "ok without statistics": changed(stats=None),
    "unknown statistic": changed(stats__colour=1),
    "unknown key of a case": changed(case__colour=1),
    "key twice": RECORD.replace(b'"status":"ok"', b'"status":"ok","status":"ok"'),
    "key twice, once escaped": RECORD.replace(
        b'"status":"ok"', b'"status":"ok","stat\\u0075s":"ok"'
    ),
    "key twice, beside a text with colons": changed(
        status="crashed", stats=None, reason="a: b:"
    ).replace(b'"seed": 1', b'"seed": 2, "seed": 1'),
    "record twice": RECORD.rstrip().removesuffix(b"}") + b"," + RECORD[1:],
    "statistic twice": RECORD.replace(b'"max_abs":', b'"max_abs":0.0,"max_abs":'),
    "largest residual nan": changed(stats__residual_max="nan"),
    "negative largest error": changed(stats__max_abs=-1.0),
    "NaN as Python writes it": RECORD.replace(b'"max_abs":0.0', b'"max_abs":NaN'),
    "a number of 5000 digits, and a colon": changed(reason=":").replace(
        b'"count": 4096', b'"count": ' + b"9" * 5000
    ),
    "deep": b'{"record":{"stats":{"envelope":' + b"[" * 20000 + b"]" * 20000 + b"}}}\n",
}


@pytest.mark.parametrize("what", TRICKS)
def test_untrusted_line(tmp_path: Path, what: str) -> None:
    """A line that no honest run writes is refused with file and line, never a bug's traceback."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(RUN + TRICKS[what])
    try:
        history.read([path])
    except TolcalError as error:
        assert str(error).startswith(f"{path}:2: ")  # noqa: PT017
    else:
        pytest.fail("accepted")


def test_colons_are_no_keys(tmp_path: Path) -> None:
    """A reason full of colons and quotes is text, however the count of keys goes about it."""
    reason = 'RuntimeError: "a": {"a": 1, "a": 2}'
    record = make_record(status="crashed", stats=None, reason=reason)
    with jsonlines.Writer(tmp_path / "r.jsonl.gz") as writer:
        writer.write(record.run)
        writer.write(record)
    assert [r.reason for r in jsonlines.read(tmp_path / "r.jsonl.gz")] == [reason]


@st.composite
def objects(draw: st.DrawFn, depth: int = 3) -> tuple[str, bool]:
    """JSON of an object, and whether some key stands twice in one, however it is written."""
    pairs, keys, twice = [], [], False
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from(["a", "b", ":", '"', "ä"]))
        twice |= key in keys
        keys.append(key)
        name = draw(st.sampled_from([json.dumps(key), json.dumps(key, ensure_ascii=False),
                                     f'"\\u{ord(key):04x}"']))  # fmt: skip
        value, inner = json.dumps(draw(st.sampled_from([1, "x", "a: :", ['"a":'], None]))), False
        if depth and draw(st.booleans()):
            value, inner = draw(objects(depth=depth - 1))
            value = draw(st.sampled_from([value, f"[{value}]"]))
        twice |= inner
        pairs.append(f"{name}{draw(st.sampled_from([':', ' : ']))}{value}")
    return "{" + ",".join(pairs) + "}", twice


@settings(max_examples=400, deadline=None)
@given(objects())
def test_keys_that_stand_twice(made: tuple[str, bool]) -> None:
    """In objects of objects and of lists, beside texts that look like keys, escaped or not."""
    text, twice = made
    line = text.encode()
    try:
        jsonlines._check_keys(line, msgspec.json.decode(line))
    except msgspec.ValidationError:
        assert twice
    else:
        assert not twice


def test_limits_of_bytes() -> None:
    """Records in memory: one record or one byte over what the caller allows is refused."""
    lines = [RUN, RECORD, RECORD, b'{"end":2}\n']
    data, size = gzip.compress(b"".join(lines)), len(b"".join(lines))
    assert len(list(jsonlines.read_bytes("it", data, 2, size))) == 2
    for records, most, says in (
        (1, size, "it:3: over the limit of 1 records"),
        (2, size - 1, f"it:4: over the limit of {size - 1} bytes when unpacked"),
    ):
        with pytest.raises(TolcalError) as caught:
            list(jsonlines.read_bytes("it", data, records, most))
        assert str(caught.value) == says
    with pytest.raises(TolcalError, match=r"^it: cut or damaged after line "):
        list(jsonlines.read_bytes("it", data[:-9], 2, size))


# --- questions ------------------------------------------------------------------------------


def test_verify_says_what_there_is(tmp_path: Path) -> None:
    """verify counts records, runs and shards of a sound history."""
    history.add(tmp_path, some(3))
    history.add(tmp_path, some(2, run=make_run(id="0" * 16)))
    assert history.verify([tmp_path]) == [f"{tmp_path}: 5 records of 2 runs in 2 shard(s): good"]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (make_record(stats=None), "a record with status ok and no statistics"),
        (make_record(stats=make_stats(max_abs=-1.0)), "a record with max_abs < 0"),
    ],
)
def test_verify_finds_what_cannot_be(tmp_path: Path, record: Record, problem: str) -> None:
    """verify refuses records that no honest run makes."""
    shard = history.add(tmp_path, [record])
    with pytest.raises(TolcalError) as caught:
        history.verify([tmp_path])
    assert str(caught.value) == (
        f"{shard}: {problem}: no honest record has that; restore it from a backup or artifact "
        "(nothing was changed)"
    )


def test_ls_has_a_row_for_each_run(tmp_path: Path) -> None:
    """ls counts each run's records, kernels and failures, the oldest run first."""
    late = make_run(id="1" * 16, started="2026-12-01T00:00:00+00:00", origin="ingest")
    crashed = make_record(seed=9, kernel="other", run=late, status="crashed", stats=None)
    history.add(tmp_path, [*some(2, run=late), crashed, *some(3)])
    rows = history.ls([tmp_path]).astype({"origin": str}).to_dict("records")
    told = [[r[k] for k in ("run_id", "origin", "rows", "kernels", "failed")] for r in rows]
    assert told == [["00000000000000aa", "local", 3, 1, 0], ["1" * 16, "ingest", 3, 2, 1]]


#: The safe way to unpack, where this Python has it (3.11.4 and newer).
SAFE: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

# --- the published results ------------------------------------------------------------------

PUBLISHED = {
    ("elu_triton", "float32"): "1.79e-07",
    ("gelu_triton", "float32"): "7.15e-07",
    ("layernorm", "float32"): "1.48e-05",
    ("matmul", "float32"): "1.01e-03",
    ("softmax_triton", "float16"): "2.29e-05",
    ("tanh_triton", "float16"): "4.58e-05",
}
PAIRED = {
    "gelu_triton_buggy", "l2norm_triton_buggy", "leaky_relu_triton_buggy", "rmsnorm_triton_buggy",
    "silu_triton_buggy", "softmax_llm_buggy", "softmax_triton_buggy",
}  # fmt: skip


@pytest.fixture(scope="module")
def gpuemu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published H200 results, unpacked: 12 runs, 18,720 rows."""
    folder = tmp_path_factory.mktemp("published")
    with tarfile.open(DATA / "gpuemu-h200.tar.xz") as archive:
        archive.extractall(folder, **SAFE)
    return folder / "gpuemu"


@pytest.fixture(scope="module")
def imported(gpuemu: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of them, made by the command."""
    folder = tmp_path_factory.mktemp("imported") / "h"
    assert import_into(gpuemu, folder) == 0
    return folder


def import_into(source: Path, folder: Path) -> int:
    return main([
        "history", "import", "gpuemu", str(source), "--history", str(folder), "--device",
        "NVIDIA H200", "--corpus", str(CORPUS),
    ])  # fmt: skip


@pytest.fixture(scope="module")
def proposal(imported: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """P.json of the published rule on them, by kernel."""
    path = tmp_path_factory.mktemp("calibrated") / "P.json"
    status = main([
        "calibrate", "--history", str(imported), "--rule", "paper", "--by", "kernel", "--json",
        str(path), "--corpus", str(CORPUS),
    ])  # fmt: skip
    assert status == 0
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.fixture(scope="module")
def rows(gpuemu: Path) -> list[dict[str, Any]]:
    """The published rows themselves."""
    files = sorted(gpuemu.glob("run-*/results.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_import_takes_every_row(imported: Path, rows: list[dict[str, Any]]) -> None:
    """Each of the 18,720 rows of 12 runs becomes one record; exceptions become crashed ones."""
    frame = history.read([imported])
    assert (len(rows), len(frame), frame["run_id"].nunique()) == (18_720, 18_720, 12)
    assert (frame["status"] == "crashed").sum() == 720
    assert set(frame["origin"]) == {"import"}
    assert set(frame["device"]) == {"NVIDIA H200"}
    got = sorted(zip(frame["kernel"], frame["dtype"], frame["seed"], strict=True))
    assert got == sorted((r["kernel"], r["dtype"], r["iteration"]) for r in rows)


def test_import_knows_dims(imported: Path) -> None:
    """Dims are recovered from the shapes: an attention row has M, N and D of its case."""
    table = history.read_table([imported])
    first = next(
        r for r in columns.to_records(table) if r.kernel == "attention_triton" and r.case.seed == 0
    )
    assert dict(first.case.dims).keys() == {"M", "N", "D"}
    for _, size in first.case.dims:
        assert size >= 1
    assert first.case.dims_text.startswith("M=")


def test_importing_twice_adds_nothing(
    gpuemu: Path, imported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing the same files again leaves the history as it is, and says so."""
    before = tree(imported)
    assert import_into(gpuemu, imported) == 0
    assert tree(imported) == before
    assert "18720 records of 12 runs read, 0 of them new, in " in capsys.readouterr().out


def test_published_tolerances(proposal: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Every proposed_tol is the published formula on the published rows, to the last digit."""
    passed: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["passed"]:
            passed[row["kernel"], row["dtype"]].append(row["error_stats"]["max_abs"])
    expected = {}
    for key, values in passed.items():
        if not key[0].endswith("_buggy"):
            ordered = sorted(values)
            expected[key] = f"{ordered[round(0.95 * (len(ordered) - 1))] * 1.5:.2e}"
    got = {(c["kernel"], c["dtype"]): f"{c['proposed_tol']:.2e}" for c in proposal["cells"]}
    assert got == expected
    assert len(got) == 29  # 16 controls in two dtypes, less three that have no rows
    assert {key: got[key] for key in PUBLISHED} == PUBLISHED


def test_published_recall(proposal: dict[str, Any]) -> None:
    """The rule flags 4,091 of the paired variants' 4,680 rows, hand-picked values 3,813."""
    paired = [b for b in proposal["buggy"] if b["kernel"] in PAIRED]
    assert {b["kernel"] for b in paired} == PAIRED
    assert sum(b["proposed"]["rows"] for b in paired) == 4680
    assert sum(b["proposed"]["flagged"] for b in paired) == 4091
    assert sum(b["legacy"]["flagged"] for b in paired) == 3813


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{oops", "not a result row: Expecting property name enclosed in double quotes: "),
        ('{"kernel": "softmax"}', "not a result row: Object missing required field `dtype`"),
        ("[" * 5000, "not a result row: "),
        ("x" * 65_537, "over 65536 bytes; nothing was imported"),
    ],
    ids=["no JSON", "no row", "deep", "long"],
)
def test_bad_foreign_line(
    gpuemu: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, expected: str
) -> None:
    """A bad line of foreign results exits 2 with file and line in one line; nothing comes in."""
    source = tmp_path / "results"
    for run in ("run-00", "run-01"):
        (source / run).mkdir(parents=True)
        content = (gpuemu / run / "results.jsonl").read_text().splitlines()[:4]
        (source / run / "results.jsonl").write_text("\n".join(content) + "\n")
    bad = source / "run-01" / "results.jsonl"
    bad.write_text("\n".join([*content[:2], line, content[3]]))
    assert import_into(source, tmp_path / "h") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"tolcal: {bad}:3: {expected}")
    assert err.count("\n") == 1
    assert not (tmp_path / "h").exists()


def test_unknown_foreign_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of a kernel that the corpus lacks is refused: its op and control are unknown."""
    path = tmp_path / "run-00" / "results.jsonl"
    path.parent.mkdir()
    row = {
        "kernel": "nobody", "dtype": "float32", "iteration": 0, "shape": [1], "passed": True,
        "failure_kind": None, "error_stats": None,
    }  # fmt: skip
    path.write_text(json.dumps(row))
    assert import_into(tmp_path, tmp_path / "h") == 2
    assert capsys.readouterr().err == (
        f"tolcal: {path}:1: kernel 'nobody' is not in the corpus, so its op and control are "
        "unknown; add it there or remove the row\n"
    )
    assert not (tmp_path / "h").exists()


def test_nothing_to_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without results is one line, exit status 2."""
    assert import_into(tmp_path, tmp_path / "h") == 2
    assert capsys.readouterr().err == (
        f"tolcal: {tmp_path}: no run-*/results.jsonl in it; give the folder of the runs\n"
    )
