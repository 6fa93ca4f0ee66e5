"""What a run costs a whole daemon, and how late the runs of a burst start: jobs that are due in the same second.

Run: python benchmarks/burst.py [JOBS [BURSTS [CRONSTABLE ...]]]

Several executables are measured side by side, their bursts in turn, so that they meet the same load of the machine.
CPU is that of the daemon without its children; lateness is the time of the file that each job touches, on the coarse
clock of the file system (4 ms).
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

APART = 5
"""Seconds between two bursts."""


class Daemon:
    """One executable. Its bursts are ``period`` seconds apart, the first one ``offset`` seconds past the minute."""

    def __init__(self, executable: str, directory: Path, jobs: int, offset: int, period: int) -> None:
        self.executable = executable
        self.jobs = jobs
        self.files = directory / "files"
        self.files.mkdir(parents=True)
        seconds = ",".join(str(second) for second in range(offset, 60, period))
        config = directory / "jobs.yaml"
        config.write_text("jobs:\n" + "".join(self._job(f"job{number:05d}", seconds) for number in range(jobs)))
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen([executable, "-c", str(config)], stdout=log, stderr=log)
        self.figures: list[tuple[float, float, float]] = []

    def _job(self, name: str, seconds: str) -> str:
        lines = (
            f"  - name: {name}",
            "    command:",
            "      - /usr/bin/touch",
            f"      - {self.files}/{name}",
            f'    schedule: "{seconds} * * * * * *"',
            "    captureStderr: false",
        )
        return "\n".join(lines) + "\n"

    def cpu(self) -> float:
        """Seconds of the daemon so far, to the nanosecond."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def burst(self, at: float) -> None:
        """Measure the burst at the wall time ``at``."""
        time.sleep(max(0.0, at - 0.3 - time.time()))
        before = self.cpu()
        time.sleep(max(0.0, at + APART - 0.5 - time.time()))
        used = self.cpu() - before
        late = sorted(1000 * (file.stat().st_mtime - at) for file in self.files.iterdir())
        late = [value for value in late if value > -100]
        if len(late) < self.jobs:
            print(f"{self.executable}: only {len(late)} of {self.jobs} runs so far")
            return
        self.figures.append((1000 * used / self.jobs, statistics.median(late), late[int(len(late) * 0.99)]))

    def stop(self) -> None:
        """End it, and wait for that."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def told(self) -> str:
        """The medians of all bursts, with the range of the first figure."""
        if not self.figures:
            return f"{self.executable}: nothing measured"
        cost, middle, last = (statistics.median(values) for values in zip(*self.figures, strict=True))
        low, high = min(self.figures)[0], max(self.figures)[0]
        spread = f"({low:.3f} to {high:.3f})"
        return f"{self.executable}: {cost:.3f} ms CPU a run {spread}, late p50 {middle:.0f} ms, p99 {last:.0f} ms"


def main() -> None:
    """Measure."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    bursts = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    executables = sys.argv[3:] or [str(Path(sys.executable).with_name("cronstable"))]
    period = next(seconds for seconds in (5, 10, 15, 20, 30, 60) if seconds >= APART * len(executables))
    with tempfile.TemporaryDirectory() as path:
        daemons = [
            Daemon(executable, Path(path, str(number)), jobs, number * APART, period)
            for number, executable in enumerate(executables)
        ]
        try:
            time.sleep(APART)
            start = (int(time.time()) // period + 1) * period
            for turn in range(bursts):
                for number, daemon in enumerate(daemons):
                    daemon.burst(start + turn * period + number * APART)
        finally:
            for daemon in daemons:
                daemon.stop()
        for daemon in daemons:
            print(daemon.told())
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
