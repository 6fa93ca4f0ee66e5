"""What the first-party backends go through in a year: a shop's jobs, several faults a day, no invariant broken.

``CRONSTABLE_SIM_YEARS`` says how many years; ``make years`` runs ten of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from click.testing import CliRunner

from cronstable.cli.simulate import simulate_command

YEAR = Path(__file__).parent.parent / "cases" / "simulator" / "year.yaml"
WEATHER = ("--faults", "all", "--fault-every", "9000", "--fault-spell", "3", "--failing", "0.05")


def test_no_invariant_breaks_in_the_life_of_a_cluster() -> None:
    years = os.environ.get("CRONSTABLE_SIM_YEARS", "0.04")
    options = ["-c", str(YEAR), "--years", years, "--backend", "each", *WEATHER, "--json", "--seed", "ci"]
    done = CliRunner().invoke(simulate_command, options, standalone_mode=False)
    facts = json.loads(done.stdout)
    assert done.return_value == 0, facts
    days = 365 * float(years)
    assert (facts["violations"], facts["duplicates"]) == (0, 0)
    # A quiet month proves nothing.
    assert facts["faults"] > 7 * days
    assert facts["terms"] > days / 2
    assert facts["starts"] > 80 * days
