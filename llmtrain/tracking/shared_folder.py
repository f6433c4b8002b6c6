"""Is this one folder for all ranks? A run on several hosts needs shared storage, and finds out before it trains.

Rank 0 puts a token into the folder; each rank that sees it adds a probe file beside it; rank 0 looks for the probes. A
rank that does not see the token, or whose probe rank 0 does not see, has another folder of the same name.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBE_PREFIX = ".probe-"


@dataclass(frozen=True)
class BlindHosts:
    """Hosts that do not see rank 0's folder. False where there are none."""

    main: str
    blind: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.blind)


def find_hosts_without(
    folder: Path, rank: int, host: str, all_gather: Callable[[Any], list[Any]], patience_seconds: float
) -> BlindHosts:
    """The hosts that do not see rank 0's `folder`; all ranks call it, and all get the same answer.

    The folder exists on rank 0. Nothing is created where it does not exist. Everything written is removed again.
    """
    token = all_gather(secrets.token_hex(8) if rank == 0 else None)[0]
    own_probe = folder / f"{PROBE_PREFIX}{token}-{rank}"
    try:
        if rank == 0:
            own_probe.touch()
        all_gather(None)
        if rank != 0 and _appears(folder / f"{PROBE_PREFIX}{token}-0", patience_seconds):
            _touch_if_possible(own_probe)
        hosts: list[str] = all_gather(host)
        blind: list[int] = []
        if rank == 0:
            deadline = time.monotonic() + patience_seconds
            probes = [folder / f"{PROBE_PREFIX}{token}-{other}" for other in range(len(hosts))]
            blind = [other for other, probe in enumerate(probes) if not _appears(probe, deadline - time.monotonic())]
        blind = all_gather(blind)[0]
    finally:
        with contextlib.suppress(OSError):
            own_probe.unlink()
    # No rank goes on, perhaps to remove the folder, before all probes are gone.
    all_gather(None)
    return BlindHosts(hosts[0], tuple(dict.fromkeys(f"{hosts[other]} (rank {other})" for other in blind)))


def _appears(path: Path, patience_seconds: float) -> bool:
    """Whether `path` is there within the time; listing its folder makes NFS look again."""
    deadline = time.monotonic() + patience_seconds
    while not path.exists():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
        if path.parent.is_dir():
            list(path.parent.iterdir())
    return True


def _touch_if_possible(path: Path) -> None:
    with contextlib.suppress(OSError):  # rank 0 will miss it, and names this host
        path.touch()
