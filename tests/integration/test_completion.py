"""Completion in the shells themselves: what a TAB makes of a line, as the command then gets it."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml

pytestmark = pytest.mark.integration

DEADLINE = 60.0
NAMES = ["nightly", "bad job/1", "it's $5", 'a "word"', "/etc/cron.d/x:5", "/etc/cron.d/x:71", "uml\u00e4ut \\ x"]
TAB = "\t"

Words: TypeAlias = Callable[[str], list[str]]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "c.yaml"
    jobs = [{"name": name, "command": "true", "schedule": "@daily"} for name in NAMES]
    path.write_text(yaml.safe_dump({"jobs": jobs}), encoding="utf-8")
    return str(path)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Where ``cronstable`` is a command that completes, and otherwise writes down the words that it was given."""
    command, scripts = tmp_path / "bin" / "cronstable", tmp_path / "scripts"
    command.parent.mkdir()
    scripts.mkdir()
    command.write_text(
        "#!/bin/sh\n"
        f'if [ -n "$_CRONSTABLE_COMPLETE" ]; then exec "{sys.executable}" -m cronstable "$@"; fi\n'
        f'"{sys.executable}" -c \'import json, sys; print("WORDS", json.dumps(sys.argv[1:]), "END")\' "$@"\n'
    )
    command.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        made = [sys.executable, "-m", "cronstable", "completion", shell]
        script = subprocess.run(made, capture_output=True, check=True, timeout=DEADLINE).stdout
        (scripts / shell).write_bytes(script)
    kept = {key: value for key, value in os.environ.items() if "CRONSTABLE" not in key and key != "BASH_ENV"}
    return {
        **kept,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
        "INPUTRC": "/dev/null",
        "SCRIPTS": str(scripts),
    }


def typed(shell: list[str], environ: dict[str, str], lines: list[str]) -> list[str]:
    """Type lines at a terminal; the words of the command that the last one ran."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        shell, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True, cwd=environ["HOME"]
    )
    os.close(theirs)
    seen = b""
    try:
        os.write(ours, "".join(f"{line}\n" for line in lines).encode())
        deadline = time.monotonic() + DEADLINE
        while b"END" not in seen.rpartition(b"WORDS [")[2] or b"WORDS [" not in seen:
            assert time.monotonic() < deadline, seen.decode(errors="replace")
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536)
    finally:
        process.kill()
        process.wait(DEADLINE)
        os.close(ours)
    found: list[str] = json.loads(seen.rpartition(b"WORDS ")[2].partition(b" END")[0])
    return found


def shell_or_skip(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("ni", "nightly"),
        ("b", "bad job/1"),
        (r"bad\ j", "bad job/1"),
        ('"bad j', "bad job/1"),
        ("'bad j", "bad job/1"),
        ("i", "it's $5"),
        ('"it', "it's $5"),
        ("'it'\\''", "it's $5"),
        ("a", 'a "word"'),
        ('"a ', 'a "word"'),
        ("'a", 'a "word"'),
        ("/etc/cron.d/x:5", "/etc/cron.d/x:5"),
        ("/etc/cron.d/x:7", "/etc/cron.d/x:71"),
        ("/etc" + TAB + "7", "/etc/cron.d/x:71"),
        ('"/etc/cron.d/x:7', "/etc/cron.d/x:71"),
        ("u", "uml\u00e4ut \\ x"),
        ("'uml\u00e4", "uml\u00e4ut \\ x"),
    ],
)
def test_bash_completes_a_job_to_one_word_that_is_its_name(
    environ: dict[str, str], config: str, line: str, word: str
) -> None:
    bash = shell_or_skip("bash")
    lines = ['. "$SCRIPTS/bash"', f"cronstable run -c {config} {line}{TAB}"]
    assert typed([bash, "--norc", "--noprofile", "-i"], environ, lines) == ["run", "-c", config, word]


def test_bash_completes_commands_and_options_and_leaves_what_is_behind_the_cursor(
    environ: dict[str, str], config: str
) -> None:
    bash = [shell_or_skip("bash"), "--norc", "--noprofile", "-i"]
    source = '. "$SCRIPTS/bash"'
    assert typed(bash, environ, [source, f"cronstable pau{TAB}--no{TAB}why"]) == ["pause", "--note", "why"]
    back = "\x02" * len(" --json")
    assert typed(bash, environ, [source, f"cronstable run -c {config} ni --json{back}{TAB}"]) == [
        "run", "-c", config, "nightly", "--json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("ni", "nightly"),
        ("b", "bad job/1"),
        (r"bad\ j", "bad job/1"),
        ("i", "it's $5"),
        ("a", 'a "word"'),
        ("/etc/cron.d/x:7", "/etc/cron.d/x:71"),
        ("u", "uml\u00e4ut \\ x"),
    ],
)
def test_zsh_completes_a_job_to_one_word_that_is_its_name(
    environ: dict[str, str], config: str, line: str, word: str
) -> None:
    zsh = shell_or_skip("zsh")
    lines = ["autoload -U compinit; compinit -D -u", '. "$SCRIPTS/zsh"', f"cronstable run -c {config} {line}{TAB}"]
    assert typed([zsh, "-f", "-i"], environ, lines) == ["run", "-c", config, word]


def test_fish_completes_jobs(environ: dict[str, str], config: str) -> None:
    fish = shell_or_skip("fish")
    asked = f'source "$SCRIPTS/fish"; complete -C "cronstable run -c {config} "'
    done = subprocess.run([fish, "-c", asked], env=environ, capture_output=True, check=True, timeout=DEADLINE)
    assert sorted(line.partition("\t")[0] for line in done.stdout.decode().splitlines()) == sorted(NAMES)
