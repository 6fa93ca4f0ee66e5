"""Which command was meant, and the exit codes that all of them share."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, NoReturn

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2

DEFAULT_CONFIG: Final = "/etc/cronstable.d"
LOG_FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")

COMPLETE: Final = "_CRONSTABLE_COMPLETE"
"""The variable through which a shell asks for completions (click's convention)."""

COMMANDS: Final = MappingProxyType(
    {
        "calendar": ("the next runs of a running node as a calendar", "cronstable.cli.plan:calendar_command"),
        "cancel": ("end the living runs of a job", "cronstable.cli.act:cancel_command"),
        "completion": (
            "complete commands and jobs in bash, zsh and fish",
            "cronstable.cli.completion:completion_command",
        ),
        "diff": ("what a running node would change with a configuration", "cronstable.cli.diff:diff_command"),
        "duplicates": ("jobs of a running node that run the same command", "cronstable.cli.plan:duplicates_command"),
        "explain": ("what an expression means, in plain words", "cronstable.cli.schedule_tools:explain_command"),
        "import": ("make a configuration from a classic crontab", "cronstable.cli.import_crontab:import_command"),
        "init": ("write a commented starter configuration", "cronstable.cli.init:init_command"),
        "list": ("the jobs of a running node", "cronstable.cli.look:list_command"),
        "logs": ("the output of a job's run, live with -f", "cronstable.cli.logs:logs_command"),
        "next": ("the next times an expression or a job is due", "cronstable.cli.coming:next_command"),
        "pause": ("skip what comes due of a job for a while", "cronstable.cli.act:pause_command"),
        "plugins": ("list the installed plugins and their health", "cronstable.cli.plugins:plugins_command"),
        "pressure": ("when most jobs of a running node start", "cronstable.cli.plan:pressure_command"),
        "resume": ("end the pause of a job", "cronstable.cli.act:resume_command"),
        "run": ("start a job here and now", "cronstable.cli.act:run_command"),
        "runs": ("the last runs of a job", "cronstable.cli.look:runs_command"),
        "schema": ("print the JSON Schema of the configuration", "cronstable.cli.schema:schema_command"),
        "simulate": ("your own jobs on simulated nodes, with faults", "cronstable.cli.simulate:simulate_command"),
        "status": ("how the jobs of a running node fare", "cronstable.cli.look:status_command"),
        "state": ("look at, check, back up and move a state store", "cronstable.cli.state:state_command"),
        "suggest": ("where a new job has most room on a running node", "cronstable.cli.plan:suggest_command"),
        "why": ("ask a running node why a job ran, or did not", "cronstable.cli.why:why_command"),
    }
)
"""Subcommand to its help line and the click command behind it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"cronstable: {message}\n")


def _parser() -> _Parser:
    lines = "\n".join(f"  {name:<12}{help_}" for name, (help_, _) in COMMANDS.items())
    parser = _Parser(
        prog="cronstable",
        description="A cron daemon whose replicas agree on who runs each occurrence.",
        epilog=f"commands (each has its own --help):\n{lines}\n\n"
        "exit codes: 0 fine, 1 a finding or a failure, 2 wrong usage",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-c", "--config", metavar="PATH", help=f"file or directory (default: {DEFAULT_CONFIG})")
    parser.add_argument("-l", "--log-level", metavar="LEVEL", default="info", help=", ".join(LEVELS))
    parser.add_argument("--log-format", metavar="FORM", help=f"{' or '.join(LOG_FORMATS)} (or CRONSTABLE_LOG_FORMAT)")
    parser.add_argument(
        "--shutdown-grace",
        metavar="SECONDS",
        help="end runs that are not over by then after a stop (or CRONSTABLE_SHUTDOWN_GRACE; default: wait for them)",
    )
    parser.add_argument("-v", "--validate-config", action="store_true", help="report every finding and exit")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="form of the findings")
    parser.add_argument("--job-set-id", action="store_true", help="print the job-set ID and exit")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    try:
        if COMPLETE in os.environ:
            from cronstable.cli.completion import complete

            return complete()
        if arguments and not arguments[0].startswith("-"):
            return _command(arguments[0], arguments[1:])
        return _daemon_forms(_parser().parse_args(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) went away; that is no failure, and the exit flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _command(name: str, arguments: Sequence[str]) -> int:
    from cronstable.cli.subcommand import invoke

    if name in COMMANDS:
        return invoke(COMMANDS[name][1], name, arguments)
    from cronstable.cli.subcommand import invoke_plugin

    return invoke_plugin(name, arguments, tuple(COMMANDS))


def _daemon_forms(options: argparse.Namespace) -> int:
    if options.version:
        from cronstable import __version__

        print(__version__)
        return OK
    if options.log_level.lower() not in LEVELS:
        print(f"cronstable: unknown log level {options.log_level!r}; one of: {', '.join(LEVELS)}", file=sys.stderr)
        return USAGE
    log_format = options.log_format or os.environ.get("CRONSTABLE_LOG_FORMAT") or "text"
    if log_format not in LOG_FORMATS:
        print(f"cronstable: unknown log format {log_format!r}; one of: {', '.join(LOG_FORMATS)}", file=sys.stderr)
        return USAGE
    grace = _seconds(options.shutdown_grace or os.environ.get("CRONSTABLE_SHUTDOWN_GRACE"))
    if grace == _WRONG:
        print("cronstable: --shutdown-grace is a number of seconds, 0 or more", file=sys.stderr)
        return USAGE
    path = options.config
    if path is None:
        if not os.path.exists(DEFAULT_CONFIG):
            print(
                f"cronstable: there is no {DEFAULT_CONFIG}; name a file or directory with -c, "
                "or write a starter with 'cronstable init'",
                file=sys.stderr,
            )
            _parser().print_usage(sys.stderr)
            return FAILED
        path = DEFAULT_CONFIG
    if options.validate_config or options.job_set_id:
        from cronstable.cli.validate import job_set_id, validate

        return job_set_id(path, options.format) if options.job_set_id else validate(path, options.format)
    if hasattr(signal, "SIGHUP"):
        # Until the daemon has its own handler; whoever asks for a reload now gets what is about to be read anyway.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from cronstable.cli.serve import Wishes, serve

    return serve(Wishes(path, options.log_level.upper(), options.format, log_format, grace))


_WRONG: Final = -1.0


def _seconds(text: str | None) -> float | None:
    """A duration; None when there is none, ``_WRONG`` when it is not one."""
    if text is None or not text.strip():
        return None
    try:
        seconds = float(text)
    except ValueError:
        return _WRONG
    return seconds if 0 <= seconds < float("inf") else _WRONG
