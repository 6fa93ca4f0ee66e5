"""``user`` and ``group``: never as somebody else, never with a right too many (reference 2)."""

from __future__ import annotations

import grp
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cronstable.core.runs import LAUNCH_FAILED, Outcome, RunRecord
from cronstable.runtime import exec_helper, runner
from cronstable.runtime.identity import Identity
from cronstable.runtime.spawn import PosixSpawner, SpawnFailed, SpawnSpec

pytestmark = [pytest.mark.integration, pytest.mark.anyio]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to switch users")

Run = Callable[..., Awaitable[RunRecord]]

NOBODY = pwd.getpwnam("nobody")


@as_root
async def test_a_job_runs_as_its_user_with_that_users_groups_and_home(run: Run) -> None:
    record = await run("id -u; id -g; id -G; echo $HOME $USER $LOGNAME", capture_stdout=True, user="nobody")
    groups = " ".join(str(gid) for gid in os.getgrouplist("nobody", NOBODY.pw_gid))
    assert (record.stdout or "").splitlines() == [
        str(NOBODY.pw_uid),
        str(NOBODY.pw_gid),
        groups,
        f"{NOBODY.pw_dir} nobody nobody",
    ]
    assert record.outcome is Outcome.SUCCESS


@as_root
async def test_a_number_is_as_good_as_a_name(run: Run) -> None:
    record = await run("id -u; id -g", capture_stdout=True, user=NOBODY.pw_uid, group=NOBODY.pw_gid)
    assert (record.stdout or "").split() == [str(NOBODY.pw_uid), str(NOBODY.pw_gid)]


@as_root
async def test_a_number_without_an_account_runs_when_a_group_is_given(run: Run) -> None:
    record = await run("id -u; id -g; id -G", capture_stdout=True, user=54321, group=54322)
    assert (record.stdout or "").split() == ["54321", "54322", "54322"]


@as_root
async def test_a_group_alone_changes_the_group_and_drops_the_others(run: Run) -> None:
    group = grp.getgrgid(NOBODY.pw_gid)
    record = await run("id -u; id -g; id -G", capture_stdout=True, group=group.gr_name)
    assert (record.stdout or "").split() == ["0", str(group.gr_gid), str(group.gr_gid)]


@as_root
async def test_explicit_variables_win_over_the_users_home(run: Run) -> None:
    record = await run("echo $HOME", capture_stdout=True, user="nobody", environment=(("HOME", "/explicit"),))
    assert record.stdout == "/explicit\n"


@as_root
async def test_a_job_of_another_user_starts_in_the_directory_that_any_job_starts_in(run: Run) -> None:
    own = await run("pwd -P", capture_stdout=True)
    theirs = await run("pwd -P", capture_stdout=True, user="nobody")
    assert own.stdout == theirs.stdout == f"{os.path.realpath(os.getcwd())}\n"


@as_root
async def test_the_command_is_the_same_process_with_the_same_exit_code(run: Run) -> None:
    assert (await run("exit 7", user="nobody")).exit_code == 7


@as_root
@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("true", {"user": "no-such-user"}, "there is no user 'no-such-user'"),
        ("true", {"user": 54321}, "uid 54321 has no account"),
        ("true", {"user": "nobody", "group": "no-such-group"}, "there is no group 'no-such-group'"),
        (("/no/such/command",), {"user": "nobody"}, "cannot execute '/no/such/command': No such file"),
        ("true", {"user": "nobody", "working_directory": "/no/such/place"}, "as the job's user: No such file"),
    ],
)
async def test_what_cannot_be_had_ends_with_127_and_says_why(
    run: Run, command: Any, options: dict[str, Any], words: str
) -> None:
    record = await run(command, capture_stdout=True, **options)
    assert (record.outcome, record.exit_code) == (Outcome.FAILURE, LAUNCH_FAILED)
    assert words in (record.fail_reason or "")
    assert (record.stdout, record.stderr) == ("", "")


@as_root
async def test_a_directory_that_only_root_may_enter_is_not_entered(run: Run, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    record = await run("true", user="nobody", working_directory=str(tmp_path / "private"))
    assert "as the job's user: Permission denied" in (record.fail_reason or "")


@as_root
async def test_the_jobs_environment_does_not_act_on_the_helper_while_it_is_root(run: Run, tmp_path: Path) -> None:
    # Python reads these at its start, the loader LD_*: were they the helper's own, it would not get to the command.
    hostile = (("PYTHONHOME", "/no/such/place"), ("LD_LIBRARY_PATH", str(tmp_path)), ("LD_DEBUG", "files"))
    record = await run(("/bin/echo", "fine"), capture_stdout=True, user="nobody", environment=hostile)
    assert record.stdout == "fine\n"
    assert "python" not in (record.stderr or "")


@as_root
async def test_a_child_of_the_helper_inherits_no_descriptor(run: Run) -> None:
    record = await run(("ls", "/proc/self/fd"), capture_stdout=True, user="nobody")
    assert (record.stdout or "").split() == ["0", "1", "2", "3"]


@as_root
async def test_a_command_is_searched_for_in_the_jobs_path_as_the_jobs_user(run: Run, tmp_path: Path) -> None:
    private, public = tmp_path / "private", Path("/usr/bin")
    private.mkdir(mode=0o700)
    path = (("PATH", f"/no/such/place:{private}:{public}:/bin"),)
    assert (await run(("id", "-u"), capture_stdout=True, user="nobody", environment=path)).stdout == "65534\n"
    missing = await run(("no-such-command-here",), user="nobody", environment=(("PATH", "/usr/bin:/bin"),))
    assert "cannot execute 'no-such-command-here': No such file" in (missing.fail_reason or "")


NO_IMPORTS = """
import os, sys
source = open(sys.argv[1]).read()
helper = {"__name__": "helper"}
exec(compile(source, sys.argv[1], "exec"), helper)
os.setgroups = os.setgid = lambda _: None
os.setuid = lambda _: sys.meta_path.clear()
status = os.dup(2)
helper["main"](0, status)
"""


def test_the_helper_imports_nothing_once_it_is_the_jobs_user(tmp_path: Path) -> None:
    # The job's user may not be able to read the standard library, and it imports on demand.
    plan = tmp_path / "plan"
    order = {"argv": ["echo", "switched"], "env": dict(os.environ), "cwd": "/", "uid": 1, "gid": 1, "groups": []}
    plan.write_text(json.dumps(order))
    command = [sys.executable, "-I", "-S", "-c", NO_IMPORTS, exec_helper.__file__]
    with plan.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("switched\n", "ok")


@as_root
async def test_a_helper_that_dies_is_a_failed_launch_and_not_the_jobs_exit_code(
    monkeypatch: pytest.MonkeyPatch, spawner: PosixSpawner
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    process = spawner.spawn(SpawnSpec(("true",), {}, identity=Identity(54321, 54321, (54321,))))
    with anyio.fail_after(10), pytest.raises(SpawnFailed, match="without an answer"):
        await process.started()
    with anyio.fail_after(10):
        assert await process.wait() == 1
    process.release()


@as_root
async def test_a_helper_that_hangs_is_given_up(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spawner: PosixSpawner
) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(runner, "START_TIMEOUT", 0.2)
    with anyio.fail_after(20):
        record = await run("true", user="nobody")
    assert "did not start within 0.2 s" in (record.fail_reason or "")
    assert spawner.owned() == frozenset()


PROGRAM = """
import json, logging, os, sys
import anyio
from cronstable.core.job import Job, JobOptions
from cronstable.core.runs import RunKey
from cronstable.runtime.runner import RunRequest, RunTools, run_job
from cronstable.runtime.spawn import PosixSpawner
from cronstable.runtime.system import SystemClock
from cronstable.runtime.threads import ThreadLanes

class Sink:
    def write(self, batch): pass
    async def ready(self): pass

async def main():
    groups, uid = json.loads(sys.argv[1])
    os.setgroups(groups)
    if uid:
        os.setgid(uid)
        os.setuid(uid)
    job = Job("j", "id -un; id -G", None, JobOptions(user="nobody", capture_stdout=True))
    environ = {"PATH": "/bin:/usr/bin"}
    tools = RunTools(PosixSpawner(), SystemClock(), ThreadLanes(), Sink(), logging.getLogger(), environ)
    record = await run_job(RunRequest(RunKey("r", "j", 60), job), tools)
    print(json.dumps([record.outcome, record.exit_code, record.fail_reason, record.stdout]))

anyio.run(main)
"""


def as_daemon(groups: list[int], uid: int) -> tuple[str, int, str, str]:
    """Outcome, exit code, reason and output of a job of ``nobody`` under a daemon with these groups and this user."""
    arguments = [sys.executable, "-c", PROGRAM, json.dumps([groups, uid])]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    outcome, code, reason, stdout = json.loads(done.stdout)
    return outcome, code, reason, stdout


@as_root
def test_the_groups_of_the_daemon_are_not_those_of_the_job() -> None:
    outcome, _, _, stdout = as_daemon([4, 27, 54321], 0)
    groups = " ".join(str(gid) for gid in os.getgrouplist("nobody", NOBODY.pw_gid))
    assert (outcome, stdout.splitlines()) == ("success", ["nobody", groups])


@as_root
def test_without_privilege_nothing_runs_as_the_wrong_user(case: Callable[[str], dict[str, Any]]) -> None:
    wanted = case("exec-user-switch-without-privilege")
    outcome, code, reason, stdout = as_daemon([], wanted["input"]["daemon_uid"])
    assert (outcome, code, stdout) == ("failure", LAUNCH_FAILED, "")
    assert "only root may switch, and the daemon runs as uid 1000" in reason
