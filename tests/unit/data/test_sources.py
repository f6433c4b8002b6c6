"""Sources: what is read from each format, and what is said where a user must mend something."""

from __future__ import annotations

import bz2
import gc
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from llmtrain.data.records import UnusableRecord
from llmtrain.data.sources import Source, resolve_sources
from llmtrain.errors import BadRecordError, ConfigError, DataError, HubUnreachableError
from tests.unit.data.support import make_config, write_json_lines

LEAVES_FILES_OPEN = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
"""`datasets` does not close a CSV file whose stream is not read to its end."""


def resolve(*sources: dict[str, Any], **data: Any) -> list[Source]:
    config = make_config(sources, **data)
    return resolve_sources(config.data.train, config.data, "data.train")


def texts_of(source: Source) -> list[str | None]:
    """The text of each row; the detail of an unusable one after an exclamation mark."""
    texts: list[str | None] = []
    for number, shard in enumerate(source.shards):
        for row in shard.rows(number):
            try:
                texts.append(shard.text(row))
            except UnusableRecord as problem:
                texts.append(f"!{problem.kind}")
    return texts


def refused(*sources: dict[str, Any], **data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(*sources, **data)
    return str(caught.value)


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_lines_are_read_as_they_are(tmp_path: Path, compress: Any) -> None:
    """A BOM, CRLF, blank lines, U+2028 in a string and a missing final newline; compression is told by content."""
    content = '\ufeff{"text": "one"}\r\n\n   \n{"text": "2020-01-01"}\n{"text": "a\u2028b"}\n{"text": "\\u00e9"}'
    path = tmp_path / "data.anything"
    path.write_bytes(compress(content.encode()))
    (source,) = resolve({"path": "json", "data_files": str(path)})
    assert texts_of(source) == ["one", "2020-01-01", "a\u2028b", "é"]
    rows = list(source.shards[0].rows(0))
    assert [(row.row, row.line) for row in rows] == [(0, 1), (1, 4), (2, 5), (3, 6)]
    assert [(row.row, row.line) for row in source.shards[0].rows(0, 2, 3)] == [(2, 5)]


def test_text_is_a_document_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("eins \r\n\nzwei\u2028drei\r\rvier\n007".encode())
    (source,) = resolve({"path": "text", "data_files": str(path)})
    assert texts_of(source) == ["eins ", "zwei\u2028drei\r\rvier", "007"]


def test_columnar_formats_read_the_needed_columns_from_any_row(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(10)), "text": [f"t{i}" if i != 4 else None for i in range(10)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    with pa.ipc.new_file(tmp_path / "file.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    with pa.ipc.new_stream(tmp_path / "stream.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    sources = resolve(
        {"path": "parquet", "data_files": str(tmp_path / "a.parquet")},
        {"path": "arrow", "data_files": str(tmp_path / "file.arrow")},
        {"path": "arrow", "data_files": str(tmp_path / "stream.arrow")},
    )
    for source in sources:
        shard = source.shards[0]
        assert texts_of(source) == ["t0", "t1", "t2", "t3", None, "t5", "t6", "t7", "t8", "t9"]
        assert [row.row for row in shard.rows(0, 5, 8)] == [5, 6, 7]
        assert [row.content for row in shard.rows(0, 5, 8)] == [("t5",), ("t6",), ("t7",)]
        pieces = shard.pieces()
        assert pieces is not None
        assert [(piece.start, piece.stop) for piece in pieces] == [(0, 3), (3, 6), (6, 9), (9, 10)]
        assert [row.size for row in shard.rows(0, 3, 5)] == [2, 0]


def test_a_text_that_is_not_utf8_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    values = pa.array([b"good", b"b\xffd", b"fine"], pa.binary())
    array = pa.StringArray.from_buffers(3, values.buffers()[1], values.buffers()[2])
    pq.write_table(pa.table({"text": array}), tmp_path / "a.parquet")
    (source,) = resolve({"path": "parquet", "data_files": str(tmp_path / "a.parquet")})
    assert texts_of(source) == ["good", "!not UTF-8", "fine"]


@LEAVES_FILES_OPEN
def test_csv_values_stay_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,text\n1,007\n2,NA\n3,"two\nlines"\n4,2020-01-01\n')
    (source,) = resolve({"path": "csv", "data_files": str(tmp_path / "a.csv")})
    assert texts_of(source) == ["007", "NA", "two\nlines", "2020-01-01"]
    assert [row.row for row in source.shards[0].rows(0, 2)] == [2, 3]
    gc.collect()


def test_folder_is_resolved_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train-00000", "train-00001", "test-00000"):
        write_json_lines(Path("folder/data") / f"{name}.jsonl", [name])
    (source,) = resolve({"path": "folder"})
    assert [shard.name for shard in source.shards] == [f"folder/data/train-0000{i}.jsonl" for i in (0, 1)]
    assert texts_of(source) == ["train-00000", "train-00001"]
    (source,) = resolve({"path": "folder", "split": "test"})
    assert texts_of(source) == ["test-00000"]
    assert "the splits there are: train, test" in refused({"path": "folder", "split": "dev"})
    assert "data.train[0].split='train[:10%]' is a slice" in refused({"path": "folder", "split": "train[:10%]"})
    assert "data.train[0].name='other'" in refused({"path": "folder", "name": "other"})


@LEAVES_FILES_OPEN
def test_other_formats_of_a_folder_stream_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for index in range(2):
        (tmp_path / f"folder/train-{index}.csv").write_text(f"text\n00{index}\nNA\n")
    (source,) = resolve({"path": "folder"})
    assert [shard.name for shard in source.shards] == ["folder/train-0.csv", "folder/train-1.csv"]
    assert texts_of(source) == ["000", "NA", "001", "NA"]
    gc.collect()


def test_what_datasets_saves_is_read(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(str(tmp_path / "saved"))
    (source,) = resolve({"path": "arrow", "data_files": str(tmp_path / "saved/*.arrow")})
    assert texts_of(source) == ["a", "b"]


def test_globs_are_sorted_and_files_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a", "c"):
        write_json_lines(Path(f"data/{name}.jsonl"), [name])
    (source,) = resolve({"path": "json", "data_files": ["data/c.jsonl", "data/*.jsonl"]})
    assert [shard.name for shard in source.shards] == ["data/c.jsonl", "data/a.jsonl", "data/b.jsonl"]


def test_template_is_filled_from_columns(tmp_path: Path) -> None:
    records = [
        {"title": "T", "body": "B", "n": 3},
        {"title": None, "body": "x", "n": None},
        {"title": "", "body": None, "n": None},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = {"path": "json", "data_files": str(tmp_path / "a.jsonl"), "template": "{{{title}}}: {body} {n}"}
    assert texts_of(resolve(source)[0]) == ["{T}: B 3", "{}: x ", None]


# --- what is refused at the start -----------------------------------------------------------------------------------


def test_missing_files_are_named_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    message = refused(
        {"path": "json", "data_files": [f"{tmp_path}/no.jsonl", f"{tmp_path}/*.jsonl"]},
        {"path": "text", "data_files": f"{tmp_path}/folder"},
        {"path": "parquet"},
        {"path": "./nowhere"},
    )
    assert message.startswith("5 problems:")
    assert f"data.train[0].data_files='{tmp_path}/no.jsonl' does not exist" in message
    assert f"data.train[0].data_files='{tmp_path}/*.jsonl' matches no file" in message
    assert f"data.train[1].data_files='{tmp_path}/folder' is a folder; name its files" in message
    assert "data.train[2].data_files=None is needed for path: parquet" in message
    assert "data.train[3].path='./nowhere' is no folder here" in message


def test_source_without_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n  \n")
    source = {"path": "json", "data_files": str(tmp_path / "a.jsonl")}
    assert "holds no row at all" in refused(source)


def test_no_text_column_names_those_there_are(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "a.jsonl", ["x"], body=3)
    message = refused({**source, "text_column": "content"})
    assert "data.train[0].text_column='content' names no column of" in message
    assert message.endswith("the columns there are: text, body")
    assert "is no text in" in refused({**source, "text_column": "body"})
    assert "names content, no column" in refused({**source, "template": "{text} {content}"})
    pq.write_table(pa.table({"body": [1]}), tmp_path / "a.parquet")
    columnar = {"path": "parquet", "data_files": str(tmp_path / "a.parquet")}
    assert "the columns there are: body" in refused(columnar)
    assert "holds a number, not text: '1'" in refused({**columnar, "text_column": "body"})
    assert "data.train[0].template='{text' is not a template" in refused({**source, "template": "{text"})
    assert "names no column" in refused({**source, "template": "text"})


def test_a_file_of_another_format(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", ["x"])
    for path in ("parquet", "arrow"):
        message = refused({"path": path, "data_files": str(tmp_path / "a.jsonl")})
        assert "data.train[0].data_files" in message
        assert "cannot be read" in message


def test_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubUnreachableError) as caught:
        resolve({"path": "wikimedia/wikipedia", "name": "20231101.en"})
    assert "http://127.0.0.1:9 does not answer" in str(caught.value)
    assert "without a network use a folder" in str(caught.value)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError, match="HF_HUB_OFFLINE is set"):
        resolve({"path": "wikimedia/wikipedia"})


def test_own_files_have_one_split(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "a.jsonl", ["x"])
    assert "data.train[0].split='test' is not a split" in refused({**source, "split": "test"})


# --- bad records ----------------------------------------------------------------------------------------------------

BAD_LINES = {
    b'{"text": "cut': ("not JSON", "is not JSON"),
    b'["a"]': ("not a JSON object", "JSON Lines has one object a line"),
    b'{"text": "\xff"}': ("not UTF-8", "byte 0xff at position 10"),
    b'{"body": "x"}': ("no text column", "has no column 'text' (the columns there are: body)"),
    b'{"text": 5}': ("not text", "column 'text' holds a number, not text"),
    b'{"text": "\\ud800"}': ("lone surrogate", "holds a lone surrogate (\\ud800"),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_record_is_named_by_line_and_no_neighbour_is_lost(tmp_path: Path, line: bytes) -> None:
    kind, detail = BAD_LINES[line]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "before"}\n\n' + line + b'\n{"text": "after"}\n')
    source = {"path": "json", "data_files": str(path)}
    assert texts_of(resolve(source)[0]) == ["before", f"!{kind}", "after"]
    path.write_bytes(b"\n" + line + b'\n{"text": "after"}\n')
    with pytest.raises(BadRecordError) as caught:
        resolve(source)
    assert str(caught.value).startswith(f"{path}: line 2: ")
    assert detail in str(caught.value)
    assert texts_of(resolve(source, on_bad_record="skip")[0]) == [f"!{kind}", "after"]


def test_truncated_archive_gives_what_is_whole(tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "%d"}\n' % number**9 for number in range(20_000))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines)[:-20_000])
    texts = texts_of(resolve({"path": "json", "data_files": str(path)})[0])
    assert len(texts) > 1000
    assert texts[:-1] == [str(number**9) for number in range(len(texts) - 1)]
    assert texts[-1] == "!damaged archive"


def test_a_file_that_disappears_is_named(tmp_path: Path) -> None:
    (source,) = resolve(write_json_lines(tmp_path / "a.jsonl", ["x"]))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read from row 0 on"):
        list(source.shards[0].rows(0))


def test_a_line_of_many_megabytes(tmp_path: Path) -> None:
    (source,) = resolve(write_json_lines(tmp_path / "a.jsonl", ["x" * 5_000_000, "y"]))
    assert [len(text or "") for text in texts_of(source)] == [5_000_000, 1]
