"""Stop requests, and the thread that receives signals; each real signal goes to a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from llmtrain.dist.signals import StopRequest


def run_python(code: str, timeout_seconds: float = 20.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds)


def test_the_first_reason_stays() -> None:
    stop = StopRequest()
    assert stop.requested is None
    assert not stop.wait(0.0)
    stop.request("time limit")
    stop.request("SIGTERM")
    assert stop.requested == "time limit"
    assert stop.wait(0.0)


def test_signals_within_five_seconds_are_one_request() -> None:
    stop, late = StopRequest(), []
    stop.on_late_signal = late.append
    for now in (100.0, 101.0, 105.0):
        stop.receive(signal.SIGTERM, now)
    assert (stop.requested, late) == ("SIGTERM", [])
    stop.receive(signal.SIGINT, 105.1)
    assert late == ["a further SIGINT ended it at once"]


def test_the_five_seconds_begin_with_the_first_signal_and_not_with_another_request() -> None:
    stop, late = StopRequest(), []
    stop.on_late_signal = late.append
    stop.request("the command deepspeed has ended")
    stop.receive(signal.SIGTERM, 1000.0)
    assert late == []
    assert stop.requested == "the command deepspeed has ended"


def test_other_signals_are_none_of_its_business() -> None:
    stop = StopRequest()
    stop.receive(signal.SIGCHLD, 0.0)
    assert stop.requested is None


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_is_noted_while_the_main_thread_is_in_c_code(name: str) -> None:
    result = run_python(f"""
        import os, signal, threading
        from llmtrain.dist.signals import install_signal_handlers
        stop = install_signal_handlers()
        noted = threading.Lock(); noted.acquire()
        def report():
            stop.wait(10)
            os.write(1, str(stop.requested).encode())
            os._exit(75)
        threading.Thread(target=report).start()
        os.kill(os.getpid(), signal.{name})
        noted.acquire()  # for ever: no Python code runs in the main thread any more
    """)
    assert (result.returncode, result.stdout) == (75, name)


def test_after_ignore_signals_nothing_ends_the_process() -> None:
    result = run_python("""
        import os, signal, time
        from llmtrain.dist.signals import install_signal_handlers
        stop = install_signal_handlers()
        stop.ignore_signals()
        os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        print(stop.requested)
    """)
    assert (result.returncode, result.stdout.strip()) == (0, "None")


def test_a_signal_to_a_forked_child_is_not_the_parents() -> None:
    result = run_python("""
        import os, signal, time
        from llmtrain.dist.signals import install_signal_handlers
        stop = install_signal_handlers()
        child = os.fork()
        if child == 0:
            time.sleep(30); os._exit(0)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        time.sleep(0.3)
        print(os.WTERMSIG(status), stop.requested)
    """)
    assert result.stdout.split() == ["15", "None"]


def test_nothing_heavy_is_imported_with_the_signals() -> None:
    started = time.monotonic()
    result = run_python("""
        import sys
        import llmtrain.dist.launcher, llmtrain.dist.quiet, llmtrain.dist.facts
        print(sorted({"torch", "deepspeed", "numpy", "transformers"} & set(sys.modules)))
    """)
    assert result.stdout.strip() == "[]"
    assert time.monotonic() - started < 10.0
