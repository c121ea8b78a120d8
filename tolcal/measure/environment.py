"""Names the environment: everything that changes numbers without changing source."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from tolcal.measure.units import SWITCHES
from tolcal.model import Environment, TolcalError, one_line


def select_device(wanted: str, number: int = 0) -> torch.device:
    """``auto`` is a GPU if there is one; of several, ``number`` chooses in turn unless named.

    TolcalError if ``cuda`` is asked for in vain.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", wanted):
        raise TolcalError(f"--device {wanted}: give auto, cpu, cuda or cuda:N")
    available = torch.cuda.is_available()
    if wanted.startswith("cuda") and not available:
        raise TolcalError(
            f"--device {wanted}: torch {torch.__version__} sees no GPU; install torch's CUDA or "
            "ROCm build on a machine with one, or use --device cpu (Triton's interpreter)"
        )
    name = ("cuda" if available else "cpu") if wanted == "auto" else wanted
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise TolcalError(f"--device {wanted}: there are {torch.cuda.device_count()} GPUs here")
    return torch.device(name, number % torch.cuda.device_count()) if name == "cuda" else device


def visible(device: torch.device) -> int:
    """GPUs that this process sees; 0 where it measures on the CPU."""
    return torch.cuda.device_count() if device.type == "cuda" else 0


def describe(device: torch.device) -> tuple[Environment, str]:
    """The environment of ``device`` and the device's UUID ("" where it has none)."""
    triton = _triton_version()
    switches = []
    if os.environ.get("TRITON_INTERPRET") == "1":
        switches.append("interpreter")
    if torch.are_deterministic_algorithms_enabled():
        switches.append("deterministic")
    for variable in SWITCHES:
        if variable in os.environ:
            switches.append(f"{variable}={one_line(os.environ[variable], 20)}")
    if device.type == "cpu":
        return (
            Environment(
                device=_cpu_name(),
                device_class="cpu",
                vendor="cpu",
                driver="",
                runtime="",
                torch=str(torch.__version__),
                triton=triton,
                switches=tuple(sorted(switches)),
            ),
            "",
        )
    if torch.backends.cuda.matmul.allow_tf32:
        switches.append("tf32")
    index = torch.cuda.current_device() if device.index is None else device.index
    properties: Any = torch.cuda.get_device_properties(index)
    hip = torch.version.hip
    uuid = str(getattr(properties, "uuid", ""))
    return (
        Environment(
            device=torch.cuda.get_device_name(index),
            device_class=(
                properties.gcnArchName.split(":")[0]
                if hip
                else f"sm_{properties.major}{properties.minor}"
            ),
            vendor="amd" if hip else "nvidia",
            driver=_driver(bool(hip)),
            runtime=f"rocm {hip}" if hip else f"cuda {torch.version.cuda}",
            torch=str(torch.__version__),
            triton=triton,
            switches=tuple(sorted(switches)),
        ),
        uuid,
    )


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


def _cpu_name() -> str:
    """The processor's name: its vector units decide the order of a CPU's sums."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine() or "cpu"


def _driver(amd: bool) -> str:
    """Version of the kernel driver, "" if nothing tells it."""
    if amd:
        module = Path("/sys/module/amdgpu/version")
        return module.read_text().strip() if module.is_file() else ""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.splitlines()[0].strip() if answer.stdout else ""
