"""Lengths of time as people write them: 90s, 30m, 23h50m, 1d2h."""

from __future__ import annotations

import re

DURATION_PATTERN = r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?"


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `30m` or `23h50m`. Raises `ValueError` for anything else, and for zero."""
    match = re.fullmatch(DURATION_PATTERN, text.replace(" ", ""))
    counts = [int(count or 0) for count in match.groups()] if match else []
    seconds = float(sum(count * unit for count, unit in zip(counts, (86400, 3600, 60, 1), strict=False)))
    if seconds <= 0:
        raise ValueError(f"{text!r} is no duration; write it with d, h, m and s, such as 30m, 23h50m or 1d2h")
    return seconds
