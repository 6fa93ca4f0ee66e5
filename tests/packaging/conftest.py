"""Wheels of the host and of every plugin, and an environment that has nothing but them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

Wheels = Mapping[str, Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environment() -> dict[str, str]:
    """Ours, without what would lead python back to the checkout or change what plugins are used."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CRONSTABLE", "VIRTUAL_"))}


def succeed(command: list[str | Path], cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")


@pytest.fixture(scope="session")
def projects(repo: Path) -> Mapping[str, Path]:
    """Distribution name to the directory of its pyproject.toml."""
    plugins = sorted(path.parent for path in repo.glob("plugins/*/pyproject.toml"))
    return {"cronstable": repo, **{path.name: path for path in plugins}}


@pytest.fixture(scope="session")
def wheels(projects: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """One wheel of each distribution, built from the checkout as it is."""
    # Without hatchling here pip fetches it, in an environment of its own.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    built = {}
    for name, project in projects.items():
        out = tmp_path_factory.mktemp(name)
        pip: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        succeed([*pip, *isolation, "--no-deps", "--wheel-dir", out, project], cwd=out)
        (built[name],) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def metadata(wheels: Wheels) -> Mapping[str, Message]:
    """The METADATA of each wheel."""
    parsed = {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA")]
            parsed[name] = Parser().parsestr(archive.read(member).decode("utf-8"))
    return parsed


@pytest.fixture(scope="session")
def environment(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty venv into which host and plugins were installed, in one command as the documentation says."""
    place = tmp_path_factory.mktemp("empty")
    venv = place / "venv"
    succeed([sys.executable, "-m", "venv", venv], cwd=place)
    pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    succeed([*pip, *wheels.values()], cwd=place)
    return venv


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """``run("python", "-c", ...)``: a program of the venv, in an empty directory far from the checkout."""

    def command(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [environment / "bin" / program, *arguments],
            cwd=tmp_path,
            env={**clean_environment(), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return command
