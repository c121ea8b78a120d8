"""Where units run: in a pool of this machine, or in one pool a GPU over a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tolcal.measure import wire
from tolcal.measure.ledger import Outcomes
from tolcal.measure.pool import Pool
from tolcal.measure.units import SWITCHES, Planned, Request, share
from tolcal.model import Environment, TolcalError, one_line


def create(
    request: Request, planned: list[Planned], known: Mapping[int, Outcomes]
) -> Pool | RayPools:
    """The engine that ``request`` names; both are used alike."""
    return (RayPools if request.engine == "ray" else Pool)(request, planned, known)


class RayPools:
    """A pool in each of several Ray tasks, of one GPU each (of one core each on a CPU).

    Every node needs tolcal and, at the same path, the folder that this process works in. Connects
    to the cluster that RAY_ADDRESS names; without it Ray is started here, on loopback.
    """

    def __init__(
        self, request: Request, planned: list[Planned], known: Mapping[int, Outcomes]
    ) -> None:
        self.request, self.planned, self.known = request, planned, known
        self.complete: dict[int, list[wire.Measured]] = {}
        self.noted: Callable[[int], None] = lambda _: None  # a task tells of whole units alone
        self.parts: dict[Any, list[int]] = {}  # task -> its units
        self.uuids: set[str] = set()
        self.first: Environment | None = None
        self.owned = False

    def __enter__(self) -> RayPools:
        return self

    def __exit__(self, *_: object) -> None:
        if self.owned:
            _ray().shutdown()  # its processes end, and the workers with them
            return
        for task in self.parts:
            with contextlib.suppress(Exception):
                _ray().cancel(task, force=True)

    @property
    def environment(self) -> Environment:
        """That of every task; known once ``start`` is through."""
        assert self.first is not None
        return self.first

    @property
    def device_uuid(self) -> str:
        """UUIDs of all devices, sorted; "" on CPUs."""
        return ",".join(sorted(self.uuids))

    def start(self) -> None:
        """Starts a task for each part and waits until all are up. TolcalError if one can't be."""
        ray = _ray()
        if not ray.is_initialized():
            self.owned = True
            _connect(ray)
        resources = ray.cluster_resources()
        device, gpus = self.request.device, int(resources.get("GPU", 0))
        if device.startswith("cuda:"):
            raise TolcalError(f"--device {device}: Ray chooses the GPUs; give --device cuda")
        if device == "cuda" and not gpus:
            raise TolcalError("--device cuda: the Ray cluster has no GPU; give --device cpu")
        on_cpu = device == "cpu" or not gpus
        slots = max(1, int(resources.get("CPU", 1)) if on_cpu else gpus)
        # None for a plan without units: then one a device, which says what it is.
        count = min(self.request.workers or slots, slots, len(self.planned) or slots)
        switches = {name: os.environ[name] for name in SWITCHES if name in os.environ}
        request = msgspec.structs.replace(
            self.request,
            engine="local",
            device="cpu" if on_cpu else "cuda",
            workers=int(on_cpu),
            variables=switches | dict(self.request.variables),
        )
        task = ray.remote(num_cpus=1, num_gpus=0 if on_cpu else 1)(measure_part).options(
            num_returns="streaming"
        )
        for part in share([p.size for p in self.planned], count):
            known = {at: self.known[i] for at, i in enumerate(part) if i in self.known}
            units = [self.planned[i] for i in part]
            self.parts[task.remote(request, units, known, str(Path.cwd()))] = part
        for started in self.parts:
            self._welcome(*self._get(next(started)))

    @property
    def places(self) -> str:
        """Where units run, for people."""
        return f"{len(self.parts)} tasks of a Ray cluster"

    def _welcome(self, environment: Environment, device_uuid: str) -> None:
        self.first = self.first or environment
        if environment != self.first:
            raise TolcalError(
                f"the nodes of the Ray cluster differ: {self.first.text}, and "
                f"{environment.text}; one run is of one kind: use nodes of one kind"
            )
        self.uuids |= {uuid for uuid in device_uuid.split(",") if uuid}

    def results(self) -> Iterator[tuple[int, list[wire.Measured]]]:
        """(unit index, its outcomes) in the order of the plan, after ``start``."""
        for upcoming in range(len(self.planned)):
            while upcoming not in self.complete:
                self._step()
            yield upcoming, self.complete.pop(upcoming)

    def _step(self) -> None:
        (ready,), _ = _ray().wait(list(self.parts), num_returns=1)
        try:
            at, outcomes = self._get(next(ready))
        except StopIteration:
            del self.parts[ready]
            return
        self.complete[self.parts[ready][at]] = outcomes

    def _get(self, reference: Any) -> Any:
        ray = _ray()
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, TolcalError):
                raise TolcalError(str(cause)) from None
            raise
        except ray.exceptions.RayError as error:
            said = one_line(str(error), 300)
            raise TolcalError(
                f"the Ray cluster failed: {type(error).__name__}: {said}; see that every node has "
                "tolcal and enough memory"
            ) from None


def measure_part(
    request: Request, planned: list[Planned], known: Mapping[int, Outcomes], folder: str
) -> Iterator[Any]:
    """The body of a task: environment and UUIDs, then (unit index, outcomes) of its units."""
    if not Path(folder).is_dir():
        raise TolcalError(
            f"node {platform.node()}: there is no folder {folder}; the corpus must lie at the same "
            "path on every node"
        )
    with Pool(request, planned, known, folder) as pool:
        pool.start()
        yield pool.environment, pool.device_uuid
        yield from pool.results()


def _ray() -> Any:
    import ray

    return ray


@contextlib.contextmanager
def cluster() -> Iterator[Any]:
    """Ray, connected as for measuring; one that was started for it ends with it."""
    ray = _ray()
    owned = not ray.is_initialized()
    try:
        if owned:
            _connect(ray)
        yield ray
    finally:
        if owned:
            ray.shutdown()


def _connect(ray: Any) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        # Nobody but this machine shall reach it.
        quiet |= {
            "address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1",
        }  # fmt: skip
    before = signal.getsignal(signal.SIGTERM)
    try:
        host, _, port = address.rpartition("://")[2].rpartition(":")
        if host and port.isdecimal():
            # Where nobody listens Ray ends the whole process after a minute, and says so at length.
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(**quiet)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise TolcalError(
            f"--engine ray: no cluster at {address or 'this machine'}: "
            f"{one_line(str(error), 200)}; check RAY_ADDRESS"
        ) from None
    finally:
        with contextlib.suppress(ValueError):  # not in the main thread, which has no handlers
            signal.signal(signal.SIGTERM, before)
