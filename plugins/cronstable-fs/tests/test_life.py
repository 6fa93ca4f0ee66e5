"""Signs of life: a lease is let go when the end of its holder's process is proven, and at no doubt (ADR 0042)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cronstable_fs.life import ASTRAY

from cronstable.api import Held, Seen, StoreUnavailable, Vacant

SAID = "the holder's process has ended"


def document(share: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(share.lease.read_bytes())
    return found


def rewrite(share: Any, **life: str) -> None:
    """What the lease says of its holder's file, changed."""
    found = document(share)
    found["life"] |= life
    share.lease.write_text(json.dumps(found))


def life(share: Any) -> Path:
    """The only sign that is there."""
    (name,) = share.signs()
    path: Path = share.root / "default" / "life" / "cluster%2Fleader" / name
    return path


# -- the proof --------------------------------------------------------------------------------------------------------


def test_the_lease_of_a_process_that_has_ended_is_let_go_at_once_and_the_log_says_so(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    grant = a.win()
    assert b.seen().record.holder == a.me
    a.disk.die()
    assert b.observe() == Vacant(grant.fence)
    (line,) = b.host.logged(SAID)
    assert line == f"cluster: the holder's process has ended: its lease is let go (a, fence {grant.fence})"
    taken = b.win()
    assert taken.fence == grant.fence + 1
    assert share.signs() == [document(share)["life"]["file"]]
    assert share.litter() == []


def test_what_was_renewed_is_let_go_as_well(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    grant = a.win()
    answer = a.renew(grant)
    assert isinstance(answer, Held)
    a.disk.die()
    assert b.observe() == Vacant(grant.fence)


def test_a_process_that_lives_is_never_proven_dead_however_long_it_says_nothing(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    grant = a.win()
    before = share.lease.read_bytes()
    for _ in range(50):
        b.clock.advance(3600.0)
        assert isinstance(b.observe(), Seen)
    assert share.lease.read_bytes() == before
    assert isinstance(a.renew(grant), Held)


def test_of_two_that_look_at_once_one_lets_go_and_both_find_it_free(share: Any) -> None:
    a, b, c = share.mortal("a"), share.mortal("b"), share.mortal("c")
    grant = a.win()
    a.disk.die()
    answers: list[Any] = []

    def between(n: int, name: str) -> None:
        if name == "lock" and not answers:
            answers.append(None)
            answers[0] = c.observe()

    b.disk.after = between
    answers.append(b.observe())
    # The one that came in between found the lock of the sign busy: no proof for it, this time.
    assert answers == [Seen(answers[0].record), Vacant(grant.fence)]
    assert c.observe() == Vacant(grant.fence)
    assert not c.host.logged(SAID)


@pytest.mark.parametrize("step", range(60))
def test_a_second_look_in_the_middle_of_the_first_changes_nothing_for_good(share: Any, step: int) -> None:
    """Whatever call of the one is interrupted by the other: nobody wedges, and the next look of both is the same."""
    a, b, c = share.mortal("a"), share.mortal("b"), share.mortal("c")
    grant = a.win()
    a.disk.die()
    start = len(b.disk.calls)

    def between(n: int, name: str) -> None:
        if n == start + step:
            c.observe()

    b.disk.before = between
    b.observe()
    assert b.observe() == Vacant(grant.fence)
    assert c.observe() == Vacant(grant.fence)
    assert share.litter() == []
    winner = c.win()
    assert isinstance(b.acquire(), Seen)
    assert isinstance(c.renew(winner), Held)


def test_a_lease_that_was_taken_between_the_proof_and_the_lock_is_left_alone(share: Any) -> None:
    a, b, c = share.mortal("a"), share.mortal("b"), share.mortal("c")
    a.win()
    a.disk.die()
    taken: list[Any] = []

    def between(n: int, name: str) -> None:
        # The first lock is that of the sign, the second one that of the section.
        if name == "lock" and b.disk.calls.count("lock") == 2 and not taken:
            assert isinstance(c.observe(), Vacant)
            taken.append(c.win())

    b.disk.before = between
    answer = b.observe()
    assert isinstance(answer, Seen)
    assert answer.record.holder == c.me
    assert isinstance(c.renew(taken[0]), Held)


# -- no proof ---------------------------------------------------------------------------------------------------------


def swapped(share: Any, change: Callable[[Path], None]) -> None:
    """Rename the whole directory away and put something in its place, while its nodes run."""
    away = share.root.with_name("away")
    os.rename(share.root, away)
    change(away)


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "dead"])
def test_a_copy_of_the_directory_in_its_place_proves_nothing(share: Any, alive: bool) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.win()
    if not alive:
        a.disk.die()
    swapped(share, lambda away: shutil.copytree(away, share.root))
    assert isinstance(b.observe(), Seen)


def test_a_copy_by_hard_links_is_the_same_file_and_a_rename_and_back_changes_nothing(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    grant = a.win()
    swapped(share, lambda away: shutil.copytree(away, share.root, copy_function=os.link))
    assert isinstance(b.observe(), Seen)
    a.disk.die()
    assert b.observe() == Vacant(grant.fence)


def test_a_sign_that_was_made_anew_or_removed_proves_nothing(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.win()
    path = life(share)
    content = path.read_bytes()
    kept = path.with_name("kept")
    path.rename(kept)
    assert isinstance(b.observe(), Seen)
    path.write_bytes(content)
    assert isinstance(b.observe(), Seen)


def test_a_file_with_another_content_proves_nothing(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.win()
    life(share).write_bytes(b"somebody else\n")
    a.disk.die()
    assert isinstance(b.observe(), Seen)


def test_the_sign_of_another_kernel_proves_nothing(share: Any, tmp_path: Path) -> None:
    """The host that exports the directory sees a local disk, and its locks are not those of who mounts it."""
    a, b = share.mortal("a"), share.mortal("b")
    other = tmp_path / "boot_id"
    other.write_text("another machine\n")
    a.disk.kernel = other
    a.win()
    share.server.forget()
    assert isinstance(b.observe(), Seen)


def test_without_a_name_for_the_kernel_there_is_no_sign(share: Any, tmp_path: Path) -> None:
    a = share.mortal("a")
    a.disk.kernel = tmp_path / "missing"
    a.win()
    assert "life" not in document(share)
    assert share.signs() == []


@pytest.mark.parametrize(
    "kind", ["nfs4", "nfs", "cifs", "ceph", "fuse.glusterfs", "fuse", "fuse.sshfs", "9p", "virtiofs", "lustre", "vfat"]
)
def test_a_mount_that_other_kernels_may_see_has_no_signs_and_takes_no_proof(share: Any, kind: str) -> None:
    a, b, c = share.mortal("a"), share.mortal("b", kind), share.mortal("c", kind)
    grant = a.win()
    a.disk.die()
    assert isinstance(b.observe(), Seen)
    b.win(over=b.seen())
    assert "life" not in document(share)
    assert grant.fence + 1 == document(share)["fence"]
    b.disk.die()
    assert isinstance(c.observe(), Seen)


def test_a_share_that_is_mounted_over_the_directory_ends_all_proofs(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.win()
    b.disk.mount_table += f"server:/x {share.root} nfs4 rw 0 0\n"
    a.disk.die()
    assert isinstance(b.observe(), Seen)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../leases/cluster%2Fleader.lock"},
        {"file": ""},
        {"inode": "1:2:3"},
        {"kernel": "x"},
        {"kernel": ""},
        {"file": "0123456789ab"},
    ],
    ids=str,
)
def test_a_lease_that_names_something_else_proves_nothing(share: Any, change: dict[str, str]) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.win()
    a.disk.die()
    rewrite(share, **change)
    assert isinstance(b.observe(), Seen)


@pytest.mark.parametrize("value", [None, 7, [], {}, {"file": 1, "kernel": 2, "inode": 3}, {"file": "ab"}], ids=str)
def test_a_lease_whose_sign_cannot_be_understood_is_a_lease_without_one(share: Any, value: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    grant = a.win()
    a.disk.die()
    found = document(share)
    found["life"] = value
    share.lease.write_text(json.dumps(found))
    assert b.seen().record.fence == grant.fence


def test_a_lease_that_was_put_back_is_not_let_go_by_who_saw_a_newer_term(share: Any) -> None:
    a, b, c = share.mortal("a"), share.mortal("b"), share.mortal("c")
    a.win()
    old, sign = share.lease.read_bytes(), life(share)
    sign.with_name("copy").hardlink_to(sign)
    a.disk.die()
    assert isinstance(b.observe(), Vacant)
    grant = b.win()
    c.seen()
    share.lease.write_bytes(old)
    sign.with_name("copy").rename(sign)
    assert isinstance(c.observe(), Seen)
    assert isinstance(b.observe(), Seen)
    assert share.lease.read_bytes() == old
    assert grant.fence > document(share)["fence"]


@pytest.mark.parametrize("step", range(1, 40))
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOSPC, errno.ESTALE])
def test_an_error_in_the_middle_is_a_doubt_and_the_next_look_settles_it(
    share: Any, fail_at: Any, step: int, code: int
) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    grant = a.win()
    a.disk.die()
    fail_at(b.disk, step, code)
    with contextlib.suppress(StoreUnavailable):
        b.observe()
    b.disk.before = lambda n, name: None
    assert b.observe() == Vacant(grant.fence)
    assert share.litter() == []


# -- the sign of this process -----------------------------------------------------------------------------------------


def test_a_descriptor_that_somebody_closed_under_us_ends_the_sign_with_the_next_renewal(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    grant = a.win()
    ((_, fd),) = share.server.owners.values()
    a.disk.close(fd)
    answer = a.renew(grant)
    assert isinstance(answer, Held)
    assert "life" not in document(share)
    assert isinstance(b.observe(), Seen)
    # And a number that may be somebody else's by now is left alone.
    other = os.open(os.devnull, os.O_RDONLY)
    a.retire()
    os.fstat(other)
    os.close(other)


def test_a_release_and_the_end_of_the_election_leave_no_file_behind(share: Any) -> None:
    a = share.mortal("a")
    grant = a.win()
    a.release(grant)
    a.retire()
    assert share.signs() == []
    assert share.server.owners == {}
    a.retire()


def test_a_sign_that_the_lease_still_names_outlives_its_election(share: Any) -> None:
    """A release that failed: the record stands, and its process lives."""
    a, b = share.mortal("a"), share.mortal("b")
    a.win()
    a.retire()
    a.store = a.fresh_store()
    assert isinstance(b.observe(), Seen)
    a.disk.die()
    assert isinstance(b.observe(), Vacant)


def test_an_election_that_is_built_anew_has_a_sign_of_its_own(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.release(a.win())
    (first,) = share.signs()
    a.store, old = a.fresh_store(), a.store
    a.win()
    assert first in share.signs()
    a.store, new = old, a.store
    a.retire()
    a.store = new
    assert share.signs() == [document(share)["life"]["file"]]
    assert isinstance(b.observe(), Seen)


def test_after_the_directory_was_swapped_a_new_term_has_a_new_sign(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.release(a.win())
    swapped(share, lambda away: shutil.copytree(away, share.root))
    grant = a.win()
    assert isinstance(b.observe(), Seen)
    a.disk.die()
    assert b.observe() == Vacant(grant.fence)


def test_a_sign_cannot_be_made_and_the_lease_is_taken_without_one(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    place = share.root / "default" / "life"
    place.parent.mkdir(parents=True)
    place.write_text("in the way")
    a.win()
    assert "life" not in document(share)
    assert isinstance(b.observe(), Seen)


def test_what_the_dead_left_is_tidied_up_and_the_living_and_the_named_stay(share: Any) -> None:
    nodes = [share.mortal(f"n{number}") for number in range(6)]
    grant = nodes[0].win()
    for node in nodes[1:]:
        node.acquire()
    assert len(share.signs()) == 6
    for node in nodes[1:5]:
        node.disk.die()
    late = share.mortal("late")
    late.acquire()
    assert len(share.signs()) == 3
    assert isinstance(nodes[0].renew(grant), Held)
    nodes[0].disk.die()
    later = share.mortal("later")
    later.acquire()
    assert document(share)["life"]["file"] in share.signs()
    assert later.observe() == Vacant(grant.fence)


def test_something_foreign_among_the_signs_is_left_aside(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    place = share.root / "default" / "life" / "cluster%2Fleader"
    (place / "0123456789ab").mkdir(parents=True)
    (place / "notes").write_text("mine")
    os.mkfifo(place / "0123456789ac")
    grant = a.win()
    a.disk.die()
    assert b.observe() == Vacant(grant.fence)
    assert share.signs() == ["0123456789ab", "notes"]


def test_a_directory_that_is_emptied_again_and_again_costs_no_descriptor_each_time(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.release(a.win())
    before = len(a.disk.fds)
    for _ in range(10):
        life(share).unlink()
        a.release(a.win())
        assert len(a.disk.fds) <= before + ASTRAY
    a.retire()
    assert a.disk.fds == set()
    grant = a.win()
    assert isinstance(b.observe(), Seen)
    a.disk.die()
    assert b.observe() == Vacant(grant.fence)


def test_a_sign_that_is_not_written_whole_is_none(share: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    write = a.disk.write

    def short(fd: int, data: bytes) -> int:
        return int(write(fd, data if b"{" in data else data[:3]))

    monkeypatch.setattr(a.disk, "write", short)
    a.win()
    assert "life" not in document(share)
    assert share.signs() == []
    assert isinstance(b.observe(), Seen)


def test_what_cannot_be_removed_does_not_keep_the_rest_from_being_tidied_up(share: Any) -> None:
    place = share.root / "default" / "life" / "cluster%2Fleader"
    place.mkdir(parents=True)
    for number in range(60):
        (place / f"{number:012x}").mkdir()
    for number in range(60):
        (place / f"f{number:011x}").write_text("dead")
    for number in range(12):
        node = share.mortal(f"n{number}")
        node.release(node.win())
        node.retire()
    assert [name for name in share.signs() if name.startswith("f")] == []


def test_a_pipe_in_the_place_of_a_sign_holds_up_nobody(share: Any) -> None:
    a, b = share.mortal("a"), share.mortal("b")
    a.win()
    path = life(share)
    path.unlink()
    os.mkfifo(path)
    assert isinstance(b.observe(), Seen)


def test_who_tidies_up_between_the_making_and_the_locking_of_a_sign_does_no_harm(share: Any) -> None:
    """At each call of the making: then there is no sign, or one that is true."""
    for step in range(1, 25):
        a, b = share.mortal("a"), share.mortal("b")
        start = len(a.disk.calls)

        def between(n: int, name: str, start: int = start, step: int = step, b: Any = b) -> None:
            if n == start + step:
                b.acquire()

        a.disk.before = between
        answer = a.acquire()
        c = share.mortal("c")
        standing = c.seen()
        holder = a if standing.record.holder == a.me else b
        assert isinstance(c.observe(), Seen)
        holder.disk.die()
        after = c.observe()
        if "life" in document(share):
            assert isinstance(after, Seen) == (document(share)["life"]["file"] not in share.signs())
        assert isinstance(answer, Held | Seen)
        a.disk.before = lambda n, name: None
        for node in (a, b):
            if not node.disk.dead:
                node.disk.die()
        share.lease.unlink()


@pytest.mark.parametrize("effective", [False, True], ids=["before", "after"])
def test_wherever_a_process_dies_in_winning_nobody_is_wedged_and_nothing_stays(
    make_share: Any, die_at: Any, died: Any, effective: bool
) -> None:
    step = 0
    while True:
        step += 1
        share = make_share()
        a, b = share.mortal("a"), share.mortal("b")
        die_at(a.disk, step, effective)
        try:
            a.win()
        except died:
            pass
        else:
            break
        answer = b.observe()
        # A record of the dead that stands has named a sign that is true, so it is let go by the first look.
        assert isinstance(answer, Vacant)
        b.win()
        assert share.signs() == [document(share)["life"]["file"]]
    assert step > 20


class Story:
    """Three nodes to which things happen at random. A living one must not lose its lease by a look alone."""

    def __init__(self, share: Any, seed: int) -> None:
        self.share, self.dice = share, random.Random(seed)
        self.nodes: dict[str, Any] = {}
        self.grants: dict[str, Any] = {}
        self.count = 0
        for name in "abc":
            self.begin(name)

    def begin(self, name: str) -> None:
        """A process that begins anew draws another token than the one before it."""
        self.count += 1
        node = self.share.mortal(name)
        node.host.ids = type(node.host.ids)(f"{name}-{self.count}")
        node.me = type(node.me)(name, node.host.ids.token())
        node.store = node.fresh_store()
        self.nodes[name] = node
        self.grants.pop(name, None)

    def happen(self) -> None:
        name = self.dice.choice(sorted(self.nodes))
        events = {"look": 14, "win": 8, "take": 3, "renew": 6, "release": 3, "rebuild": 2, "die": 4, "swap": 1}
        (event,) = self.dice.choices(list(events), list(events.values()))
        getattr(self, event)(name, self.nodes[name])

    def look(self, name: str, node: Any) -> None:
        before = document(self.share) if self.share.lease.exists() else {"expiresAt": 0}
        if isinstance(node.observe(), Vacant) and before["expiresAt"]:
            assert before["holder"] not in {str(one.me) for one in self.nodes.values()}

    def win(self, name: str, node: Any) -> None:
        self.keep(name, node.acquire())

    def take(self, name: str, node: Any) -> None:
        """The ttl is over."""
        standing = node.observe()
        if isinstance(standing, Seen):
            self.keep(name, node.acquire(over=standing))

    def renew(self, name: str, node: Any) -> None:
        if name in self.grants:
            self.keep(name, node.renew(self.grants.pop(name)))

    def keep(self, name: str, answer: Any) -> None:
        if isinstance(answer, Held):
            self.grants[name] = answer.grant

    def release(self, name: str, node: Any) -> None:
        if name in self.grants:
            node.release(self.grants.pop(name))

    def rebuild(self, name: str, node: Any) -> None:
        node.retire()
        node.store = node.fresh_store()
        self.grants.pop(name, None)

    def die(self, name: str, node: Any) -> None:
        node.disk.die()
        self.begin(name)

    def swap(self, name: str, node: Any) -> None:
        """A copy in the place of the directory."""
        self.count += 1
        away = self.share.root.with_name(f"{self.share.root.name}-away-{self.count}")
        os.rename(self.share.root, away)
        shutil.copytree(away, self.share.root)

    def end(self) -> None:
        """Whatever happened: the next process that wins and dies is proven dead."""
        for name, node in list(self.nodes.items()):
            self.die(name, node)
        a, b = self.nodes["a"], self.nodes["b"]
        if isinstance(a.observe(), Seen):
            self.take("a", a)
        else:
            self.win("a", a)
        fence = self.grants["a"].fence
        assert isinstance(b.observe(), Seen)
        self.die("a", a)
        assert b.observe() == Vacant(fence)


@pytest.mark.parametrize("seed", range(25))
def test_in_any_order_of_events_only_the_dead_lose_their_lease_by_a_look(make_share: Any, seed: int) -> None:
    share = make_share()
    share.root.mkdir()
    story = Story(share, seed)
    for _ in range(150):
        story.happen()
    story.end()
