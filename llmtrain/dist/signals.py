"""Requests to stop: signals, a time limit, a last step. They are noted here; the ranks agree on them once per step.

Signals are received by a thread, through `signal.set_wakeup_fd`: Python runs a handler in the main thread only, and
never while that waits in a collective. All signals within 5 s of the first are one request, since a process group, a
launcher and a scheduler each send their own; a later one means that the user will not wait, and ends the process at
once.

Nothing heavy is imported, so that the handlers stand before torch's import, which takes seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from llmtrain.dist.processes import leave, say
from llmtrain.errors import ExitStatus

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAME_REQUEST_SECONDS = 5.0


class StopRequest:
    """Whether, and why, this rank was asked to stop. The first reason stays. Safe from any thread."""

    def __init__(self) -> None:
        self.on_late_signal: Callable[[str], None] = _leave_at_once
        """Ends the process; called by the signal thread with the reason."""
        self._reason: str | None = None
        self._requested = threading.Event()
        self._lock = threading.Lock()
        self._first_signal_at: float | None = None
        self._ignores_signals = False

    @property
    def requested(self) -> str | None:
        """The reason of the request, None while there is none."""
        return self._reason

    def request(self, reason: str) -> None:
        """Ask this rank to stop."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
        self._requested.set()

    def wait(self, timeout_seconds: float) -> bool:
        """Sleep until a request comes, at most so long; whether there is one."""
        return self._requested.wait(timeout_seconds)

    def receive(self, signal_number: int, now: float) -> None:
        """Note a signal; `now` is in seconds on any steady clock."""
        if self._ignores_signals or signal_number not in STOP_SIGNALS:
            return
        name = signal.Signals(signal_number).name
        if self._first_signal_at is None:
            self._first_signal_at = now
            self.request(name)
        elif now - self._first_signal_at > SAME_REQUEST_SECONDS:
            self.on_late_signal(f"a further {name} ended it at once")

    def ignore_signals(self) -> None:
        """From here on the end of the process is near and certain: signals change nothing any more."""
        self._ignores_signals = True
        # In the interpreter's last moments Python resets its own handlers to the default, but not SIG_IGN.
        with contextlib.suppress(ValueError):  # not the main thread
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)


def install_signal_handlers(stop: StopRequest | None = None) -> StopRequest:
    """Turn SIGTERM, SIGUSR1 and SIGINT into requests to stop. Main thread only; before torch is imported."""
    stop = stop or StopRequest()
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    for number in STOP_SIGNALS:
        signal.signal(number, _do_nothing)
        # Restart system calls instead of failing them with EINTR, which not every C++ library expects.
        signal.siginterrupt(number, False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget_handlers)
    thread = threading.Thread(target=_receive_signals, args=(receiver, sender, stop), name="signals", daemon=True)
    thread.start()
    return stop


def _receive_signals(receiver: socket.socket, sender: socket.socket, stop: StopRequest) -> None:
    assert sender.fileno() >= 0  # this thread keeps the other end open
    while received := receiver.recv(64):
        for signal_number in received:
            stop.receive(signal_number, time.monotonic())


def _forget_handlers() -> None:
    """In a forked child: a signal to it is its own, and must not be written into the parent's socket."""
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _do_nothing:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)


def _do_nothing(signal_number: int, frame: object) -> None:
    """A handler must be there for the signal to reach the wake-up descriptor."""


def _leave_at_once(reason: str) -> None:
    say(reason)
    leave(ExitStatus.FAILED)
