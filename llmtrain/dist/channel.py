"""The failure channel: when one rank fails or dies, the whole job ends, soon, with one reason.

A collective whose partner is gone may wait for ever, and an exception then leaves through destructors that wait too. So
each rank has two threads beside its main thread, and a store (hosted by rank 0) beside the collectives:

    talk    each 0.5 s: beats, and looks whether a failure was published. Rank 0 looks at the others' beats too.
    watch   each 0.25 s: looks whether the processes of this host's other ranks are alive, and whether `talk` still gets
            answers. It alone ends the process, so that a store that does not answer cannot keep it.

The first failure that is published is the job's; it is published by the rank itself (`fail`), or for a dead rank by the
ranks of its host, which see its process gone. Every rank then leaves by `os._exit`. The lowest surviving rank calls
`on_failure` (which writes status.json) before it does, and says the reason where the dead cannot.

What counts as death. On the same host: the process is gone; no rank that is merely busy is taken for dead. On another
host: none of that host's ranks has beaten for 40 looks of rank 0 (20 s), or the store has not answered for as long. A
thread cannot beat while other code holds Python's lock, which happens for seconds (a large pickle, a library being
loaded), and 20 s leave 10 of the 30 that a job may take to end. Looks are counted, not seconds, so that a job that
was suspended as a whole, or a watcher that was itself kept waiting, sees nobody dead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from llmtrain.dist.failure import Failure, record
from llmtrain.dist.processes import leave, say
from llmtrain.dist.waiting import Answer, within

if TYPE_CHECKING:
    from llmtrain.dist.rendezvous import Member

_TALK_SECONDS = 0.5
_WATCH_SECONDS = 0.25
_SILENT_LOOKS = 40
_BYSTANDER_LOOKS = 4
_FAILURE_KEY = "failure"
_HEARD_SECONDS = 3.0
_LEAVE_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
_ANSWER_SECONDS = 3.0


@dataclass
class _Beats:
    """What rank 0 has heard from a rank of another host."""

    last: bytes = b""
    silent_looks: int = 0


@dataclass
class _Knowledge:
    """What this rank knows; written by both threads, each field by one of them."""

    talks: int = 0
    store_is_lost: bool = False
    published: Failure | None = None
    beats: dict[int, _Beats] = field(default_factory=dict)


class FailureChannel:
    """The channel of one rank of several. `members` are in the order of the ranks; `store` is the channel's alone."""

    def __init__(
        self,
        store: TCPStore,
        members: Sequence[Member],
        rank: int,
        on_failure: Callable[[str], None],
    ) -> None:
        self._store = store
        self._members = members
        self._rank = rank
        self._on_failure = on_failure
        here = members[rank].host_id
        self._siblings = [m for m in members if m.host_id == here and m.rank != rank]
        elsewhere = [m for m in members if m.host_id != here]
        self.notice_seconds = _TALK_SECONDS * (4 + (_SILENT_LOOKS if elsewhere else 0))
        """Within this time another rank's death is noticed."""
        self._known = _Knowledge(beats={m.rank: _Beats() for m in elsewhere} if rank == 0 else {})
        self._finished = threading.Event()
        self._ending = threading.Lock()
        self._has_ended = False
        self._looks_since_own_failure = 0
        self._looks_as_bystander = 0
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to beat and to watch."""
        for name, loop in (("failure-talk", self._talk), ("failure-watch", self._watch)):
            thread = threading.Thread(target=loop, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def fail(self, failure: Failure, *, patience_seconds: float = 0.0) -> Failure:
        """Publish this rank's failure; the job's failure, which is another's where that came first.

        `patience_seconds`: wait so long for the failure of another, of which this may be the consequence. Where the
        job's failure is another's, the watch ends this process before this returns.
        """
        self._finished.wait(patience_seconds)
        first = self._publish(failure)
        if first == failure and self._is_lowest_survivor(self._dead()):
            self._end_of_job(first)
        if first != failure:
            self._finished.wait(_HEARD_SECONDS)
        return first

    def finish(self) -> None:
        """All ranks have done everything: from here on nobody's end is a failure."""
        self._finished.set()

    def close(self) -> None:
        """Leave the channel. Rank 0, whose store it is, waits until the others have left."""
        self.finish()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)
        try:
            self._store.set(_done_key(self._rank), "1")
            if self._rank == 0:
                self._wait_for(lambda rank: self._store.check([_done_key(rank)]), _CLOSE_SECONDS)
        except RuntimeError:  # rank 0 has left: nobody needs the word any more
            return

    def _talk(self) -> None:
        while not self._finished.wait(_TALK_SECONDS):
            if self._host_of_store_is_gone():
                return  # the watch sees to the rest
            try:
                self._store.set(_beat_key(self._rank), str(self._known.talks))
                self._known.published = self._read_failure()
                self._listen()
            except RuntimeError:
                self._known.store_is_lost = True
                return
            self._known.talks += 1

    def _listen(self) -> None:
        """Rank 0: count how long each rank of another host has been silent."""
        beats = self._known.beats
        present = list(beats)
        if present and not self._store.check([_beat_key(rank) for rank in present]):
            present = [rank for rank in present if self._store.check([_beat_key(rank)])]
        values = dict(zip(present, self._store.multi_get([_beat_key(rank) for rank in present]), strict=True))
        for rank, heard in beats.items():
            beat = values.get(rank, b"")
            heard.silent_looks = 0 if beat != heard.last else heard.silent_looks + 1
            heard.last = beat

    def _watch(self) -> None:
        talks, looks_without_talk = -1, 0
        while not self._finished.wait(_WATCH_SECONDS):
            looks_without_talk = 0 if self._known.talks != talks else looks_without_talk + 1
            talks = self._known.talks
            if looks_without_talk * _WATCH_SECONDS > _SILENT_LOOKS * _TALK_SECONDS:
                self._known.store_is_lost = True
            failure = self._known.published or self._find_death()
            if failure is not None:
                self._end(failure)

    def _find_death(self) -> Failure | None:
        """The lowest rank that has died, if any has; published so that all hosts name the same."""
        dead = self._dead()
        dead -= self._done(dead)
        if not dead or self._finished.is_set():
            return None
        member = self._members[min(dead)]
        how = f"process {member.process.pid} on {member.host} is gone"
        if member not in self._siblings:
            how = f"nothing was heard from {member.host} for {_SILENT_LOOKS * _TALK_SECONDS:g} s"
            if member.rank == 0:
                how = f"its store on {member.host} cannot be reached"
        reason = f"rank {member.rank} died: {how} (killed? out of memory?)"
        return self._publish(Failure(member.rank, reason, by_itself=False))

    def _dead(self) -> set[int]:
        """Ranks that are dead (or done): siblings without a process, silent ranks elsewhere, rank 0 with its store."""
        dead = {member.rank for member in self._siblings if not member.process.is_alive}
        dead |= {0} if self._known.store_is_lost else set()
        silent = {rank for rank, heard in self._known.beats.items() if heard.silent_looks > _SILENT_LOOKS}
        # One rank that is silent while others of its host beat is busy: those would have seen it die.
        beating_hosts = {self._members[rank].host_id for rank in self._known.beats if rank not in silent}
        return dead | {rank for rank in silent if self._members[rank].host_id not in beating_hosts}

    def _done(self, ranks: set[int]) -> set[int]:
        """Those that had done everything before they ended. Rank 0 ends last, and its store with it."""
        if not ranks or 0 in ranks:
            return set()
        return self._ask(lambda: {rank for rank in ranks if self._store.check([_done_key(rank)])}) or set()

    def _publish(self, failure: Failure) -> Failure:
        """Make it the job's failure unless there is one; the job's failure."""
        if self._known.published is not None:
            return self._known.published
        answer = self._ask(lambda: self._store.compare_set(_FAILURE_KEY, "", failure.to_json()))
        return failure if answer is None else Failure.from_json(answer)

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        """Ask the store from outside `talk`; None where it is lost, or gives no answer within 3 s."""
        if self._known.store_is_lost or self._host_of_store_is_gone():
            return None
        return within(_ANSWER_SECONDS, question)

    def _host_of_store_is_gone(self) -> bool:
        """Asked first because torch's store prints its errors."""
        return self._members[0] in self._siblings and not self._members[0].process.is_alive

    def _read_failure(self) -> Failure | None:
        if not self._store.check([_FAILURE_KEY]):
            return None
        failure = Failure.from_json(self._store.get(_FAILURE_KEY))
        self._store.set(_heard_key(self._rank), "1")
        return failure

    def _end(self, failure: Failure) -> None:
        """End this process for the failure of another rank (or its own, where its main thread is stuck after it)."""
        if failure.rank == self._rank and failure.by_itself:
            # The main thread is about to say it and to leave; it is not waited for without end.
            self._looks_since_own_failure += 1
            if self._looks_since_own_failure * _WATCH_SECONDS < _LEAVE_SECONDS:
                return
        if self._is_lowest_survivor(self._dead()):
            if not failure.by_itself:
                say(failure.reason)
            self._end_of_job(failure)
        else:
            # Another's duty; but it may be about to die too.
            self._looks_as_bystander += 1
            if self._looks_as_bystander <= _BYSTANDER_LOOKS:
                return
        leave(failure.exit_status)

    def _is_lowest_survivor(self, dead: set[int]) -> bool:
        """Rank 0 while it lives; then the lowest of each host: without the store the hosts cannot ask each other."""
        if self._rank == 0 or 0 not in dead:
            return self._rank == 0
        return all(member.rank in dead for member in self._siblings if member.rank < self._rank)

    def _end_of_job(self, failure: Failure) -> None:
        """The duties of the lowest survivor, once; it leaves last, so that the others know that it did them."""
        with self._ending:
            if self._has_ended:
                return
            record(self._on_failure, failure.reason)
            self._wait_for(self._has_heard, _HEARD_SECONDS)
            self._has_ended = True

    def _has_heard(self, rank: int) -> bool:
        """Ranks of this host are waited for until they end; of the others rank 0 knows whether they read the reason."""
        if self._members[rank] in self._siblings:
            return False
        return self._rank != 0 or self._store.check([_heard_key(rank)])

    def _wait_for(self, has_left: Callable[[int], bool], timeout_seconds: float) -> None:
        """Wait until every other rank has left, or has ended."""
        deadline = time.monotonic() + timeout_seconds
        waiting = {member.rank for member in self._members} - {self._rank}
        while waiting and time.monotonic() < deadline:
            waiting = {rank for rank in waiting - self._dead() if not has_left(rank)}
            time.sleep(0.02)


def _beat_key(rank: int) -> str:
    return f"beat/{rank}"


def _heard_key(rank: int) -> str:
    return f"heard/{rank}"


def _done_key(rank: int) -> str:
    return f"done/{rank}"
