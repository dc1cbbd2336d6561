"""What machine the kit is on: card, driver, tools, Python's packages."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess

from kit import Place

TOOLS = {
    "nvidia-smi": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,mig.mode.current", "--format=csv,noheader"],
    "cuda": ["nvidia-smi", "--version"],
    "nvcc": ["nvcc", "--version"],
    "ncu": ["ncu", "--version"],
    "compute-sanitizer": ["compute-sanitizer", "--version"],
    "system": ["uname", "-srm"],
    "processor": ["sh", "-c", "grep -m1 'model name' /proc/cpuinfo; nproc; grep MemTotal /proc/meminfo"],
}
PACKAGES = ["torch", "triton", "transformers", "torchvision", "timm", "numpy", "safetensors"]


def machine(place: Place) -> None:
    """What machine this is; no package is loaded for that."""
    tell_tools(place)
    place.tell(python=versions())


def tell_tools(place: Place) -> None:
    """Card, driver and tools."""
    found = {name: said(command) for name, command in TOOLS.items()}
    print(found)
    place.tell(tools=found)


def versions() -> dict[str, str]:
    """Python's version, and those of its packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def version(package: str) -> str:
    """The version of a package of Python."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not there"


def said(command: list[str]) -> str:
    """What a tool prints, or that it is not there."""
    if shutil.which(command[0]) is None:
        return "not there"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return "no answer"
    return (done.stdout + done.stderr).strip()[:600]
