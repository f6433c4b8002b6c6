"""Files that are replaced whole and files that grow line by line."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmtrain.tracking import files
from llmtrain.tracking.files import JsonlWriter, write_atomically


def test_a_replaced_file_is_old_or_new_and_never_partial(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    contents = [str(n) * 20_000 for n in range(8)]
    write_atomically(path, contents[0])
    seen: set[str] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        for content in contents:
            write_atomically(path, content)
    done.set()
    reader.join()
    assert seen <= set(contents)
    assert len(seen) > 1, "the reader saw no replacement: the test shows nothing"
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_replacement_that_fails_leaves_the_old_content_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, "old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_text_that_utf8_cannot_hold_is_escaped(tmp_path: Path) -> None:
    write_atomically(tmp_path / "status.json", "caf\udce9 ü")
    assert (tmp_path / "status.json").read_text(encoding="utf-8") == "caf\\udce9 ü"


def test_lines_are_on_disk_at_once_and_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    script = (
        "import os, signal, sys; from pathlib import Path; from llmtrain.tracking.files import JsonlWriter\n"
        "writer = JsonlWriter(Path(sys.argv[1]))\n"
        "for n in range(3): writer.append(str(n))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert path.read_text() == "0\n1\n2\n"


def test_several_writers_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    def write(letter: str) -> None:
        writer = JsonlWriter(path)
        for _ in range(200):
            writer.append(letter * 500)
        writer.close()

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(letter * 500 for letter in "abc" for _ in range(200))


def test_a_line_that_was_torn_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    writer = JsonlWriter(path)
    writer.append('{"step": 2}')
    writer.append('{"step": 3}')
    writer.close()
    writer.close()
    assert path.read_text() == '{"step": 1}\n{"ste\n{"step": 2}\n{"step": 3}\n'


def test_a_line_that_does_not_fit_raises_and_the_next_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path)
    writer.append("x" * 99)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (110, hard))
    try:
        with pytest.raises(OSError, match="only 10 of 51 bytes"):
            writer.append("y" * 50)
        with pytest.raises(OSError, match="File too large"):
            writer.append("z" * 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.append("last")
    writer.close()
    assert path.read_text() == "x" * 99 + "\n" + "y" * 10 + "\n" + "last\n"
    assert os.path.getsize(path) == 116
