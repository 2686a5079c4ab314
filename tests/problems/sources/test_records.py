"""Records of every format with random access, and the commands of the page on your own data."""

import json
import re
import struct
from pathlib import Path

import pytest

from t2tp import problems
from t2tp.problems.data.sample import BadSampleError
from t2tp.problems.sources.records import Records
from t2tp.trainer.cli.programs import t2tp_trainer
from t2tp.trainer.run_dir import run_files
from tests.page_blocks import blocks
from tools.page_commands import commands

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PAGE = "docs/own_data.md"
TEXTS = [f'number {n}, "quoted"\nand a second line of words' for n in range(120)]
RECORDS = [{"body": text, "spam": n % 3, "note": "x" * n} for n, text in enumerate(TEXTS)]


def write(path, records):
    """Writes records in the format of the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
        return
    if path.suffix == ".csv":
        rows = [list(records[0]), *([str(v) for v in each.values()] for each in records)]
        quoted = [",".join('"' + v.replace('"', '""') + '"' for v in row) for row in rows]
        path.write_text("\n".join(quoted))  # without a line end after the last line
        return
    table = pyarrow.Table.from_pylist(records)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=7)
        return
    kind = pyarrow.ipc.new_file if path.stem == "1" else pyarrow.ipc.new_stream
    with pyarrow.OSFile(str(path), "wb") as file, kind(file, table.schema) as out:
        for batch in table.to_batches(max_chunksize=11):  # as `datasets` writes them
            out.write_batch(batch)


def saved(directory, splits):
    """Writes a directory as `DatasetDict.save_to_disk` does."""
    for split, records in splits.items():
        write(directory / split / "data-00000-of-00001.arrow", records)
        (directory / split / "state.json").write_text("{}")
        (directory / split / "dataset_info.json").write_text("{}")
    (directory / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "arrow"])
def test_any_record_can_be_read_by_its_number(tmp_path, ending):
    for part in range(2):
        write(tmp_path / f"{part}.{ending}", RECORDS[60 * part : 60 * part + 60])
    records = Records([tmp_path / f"{part}.{ending}" for part in range(2)], tmp_path / "scratch")
    assert len(records) == 120
    for number in (119, 0, 60, 59, 7):
        assert records.value(number, "body") == TEXTS[number]
        assert str(records.value(number, "spam")) == str(number % 3)
    assert re.search(rf"1\.{ending}, (line|row) \d+$", records.location(100))
    with pytest.raises(BadSampleError, match=rf"0\.{ending}, .*: no 'text', only 'body', 'spam', "):
        records.value(3, "text")


REFUSED = [
    ("a.jsonl", "{}\n[1]\n", "a.jsonl, line 2: a JSON list, and each line must be an object"),
    ("a.jsonl", "{}\n{'a'}\n", "a.jsonl, line 2: not JSON"),
    ("a.csv", "a,b\n1,2\n1,2,3\n", "a.csv, row 3: 3 values, and the first row has 2 names"),
    ("a.csv", 'a,b\n1,2\n5" x,2\n3,4\n6" y,5\n', "a.csv, row 3: 3 rows and not one; a value"),
    ("a.csv", 'a,b\n1,2\n"x,2\n3,4\n"y,5\n', "a.csv, row 3: .*; a value with a quote in it"),
    ("a.csv", 'a,b\n1,2\n"x,2\n3,4\n', "a.csv, row 3: .*; a value with a quote in it"),
    ("a.csv", "a,b,a\n1,2,3\n", "a.csv, row 1: several columns have the same name"),
    ("a.parquet", "no", "a.parquet is not a Parquet file"),
    ("a.arrow", "no", "a.arrow is not an Arrow file"),
    ("a.jsnl", "{}", "unknown file extension.*did you mean .jsonl"),
]


@pytest.mark.parametrize(("name", "contents", "message"), REFUSED)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path, name, contents, message):
    (tmp_path / name).write_text(contents)
    with pytest.raises(ValueError, match=message):
        Records([tmp_path / name], tmp_path)[1]


def arrow(path, table, **options):
    with (
        pyarrow.OSFile(str(path), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema, **options) as stream,
    ):
        stream.write_table(table)


def offsets(path, table):
    """Writes a table of texts with 3 characters, and changes where the third begins."""
    arrow(path, table)
    old, new = (struct.pack("<4i", 0, 3, third, 9) for third in (6, 2**31 - 1))
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))


def one_value(path, table):
    """Writes one value of a megabyte in 300 rows: a file of some kilobytes."""
    value = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 300), ["x" * 2**20])
    parquet.write_table(pyarrow.table({"text": value}), path, store_schema=False)


def one_row(path, table):
    """Writes one row with 1.25 GiB: a file of some 100 kilobytes."""
    value = pyarrow.array(["x" * 2**28], pyarrow.large_string())
    columns = {f"text{n}": value for n in range(5)}
    options = dict(compression="zstd", use_dictionary=False, write_statistics=False)
    parquet.write_table(pyarrow.table(columns), path, **options)


def compressed(path, table):
    large = pyarrow.array(["x" * 2**27], pyarrow.large_string())
    arrow(
        path,
        pyarrow.table([large], ["text"]),
        options=pyarrow.ipc.IpcWriteOptions(compression="zstd"),
    )


HOSTILE = {
    "offsets.arrow": (offsets, "monotonically|monotonic|offset"),
    "compressed.arrow": (compressed, "make over 1 rows"),
    "one_value.parquet": (one_value, "make over 256 rows"),
    "one_row.parquet": (one_row, "takes more than 1024 MiB of memory"),
    "rows.parquet": (
        lambda path, table: parquet.write_table(
            pyarrow.table({"text": pyarrow.nulls(10**8)}), path
        ),
        "make over",
    ),
    "names.parquet": (
        lambda path, table: parquet.write_table(table.append_column("text", table["text"]), path),
        "several columns have the same name",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_columnar_file_is_read_with_limits(name, tmp_path):
    write_file, reason = HOSTILE[name]
    write_file(tmp_path / name, pyarrow.table({"text": ["abc"] * 3}))
    with pytest.raises(
        ValueError, match=f"{name} is not .* that can be read: .*({reason})"
    ) as error:
        Records([tmp_path / name], tmp_path / "scratch")
    assert len(str(error.value).splitlines()) == 1
    assert not list((tmp_path / "scratch/records").iterdir())


def test_classes_are_the_values_of_the_targets(tmp_path):
    write(tmp_path / "a.jsonl", [{**each, "spam": each["spam"] * 7} for each in RECORDS])
    options = f"files={tmp_path}/a.jsonl,inputs=body,targets=spam,vocab_size=300"
    problem = problems.find("text2class_records", options)
    problem.prepare(tmp_path / "data")
    again = problems.find("text2class_records")
    assert again.vocab_sizes(tmp_path / "data")["targets"] == 3
    assert again.class_names == ("0", "7", "14")
    sample = again.decode_example(tmp_path / "data", "train", 0)
    number = int(re.search(r"\d+", sample["inputs"])[0])
    assert sample["label"] == number % 3
    with pytest.raises(ValueError, match="1001 or more different values, and there may be 1000 c"):
        write(tmp_path / "b.jsonl", [{"inputs": "x", "targets": n} for n in range(2000)])
        problems.find("text2class_records", f"files={tmp_path}/b.jsonl").prepare(tmp_path / "b")


def test_data_with_other_classes_are_not_mixed(tmp_path):
    for name, classes in {"a": ("no", "yes"), "b": ("bad", "good"), "c": ("no", "yes")}.items():
        records = [{"inputs": f"text {n}", "targets": classes[n % 2]} for n in range(100)]
        write(tmp_path / f"{name}.jsonl", records)

    def mixed(*names):
        parts = [f"text2class_records:{name}" for name in names]
        options = ",".join(f"{part}.files={tmp_path}/{part[-1]}.jsonl" for part in parts)
        return problems.find(f"mixture:{','.join(parts)}", f"{options},vocab_size=300")

    assert mixed("a", "c").prepare(tmp_path / "data").splits["train"].examples > 100
    with pytest.raises(ValueError, match="classes are not the same: no, yes, and bad, good;"):
        mixed("a", "b").prepare(tmp_path / "data")


def test_directories_are_read_by_their_splits(tmp_path):
    saved(tmp_path / "saved", {"train": RECORDS[:100], "test": RECORDS[100:]})
    options = f"files={tmp_path}/saved,text=body,vocab_size=300"
    problem = problems.find("languagemodel_records", options)
    sizes = problem.prepare(tmp_path / "data").splits
    assert [sizes[split].examples for split in problem.splits] == [100, 10, 10]
    problems.find("languagemodel_records", options).check_prepared(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "README.md").write_text("no data")
    with pytest.raises(ValueError, match="the directory has no file that ends in .jsonl"):
        problems.find("languagemodel_records", f"files={tmp_path}/empty")


@pytest.mark.parametrize("place", ["{}.jsonl", "{}-0.jsonl", "{}/0.jsonl", "en/{}/0.jsonl"])
def test_no_split_of_a_directory_is_taken_for_train(tmp_path, place):
    for n, split in enumerate(("train", "validation", "test")):
        records = [{"text": f"{split} {number}"} for number in range(100 - 40 * n)]
        write(tmp_path / "a [1]" / place.format(split), records)
    problem = problems.find("languagemodel_records", f"files={tmp_path}/a [1],vocab_size=280")
    sizes = problem.prepare(tmp_path / "data").splits
    assert [sizes[split].examples for split in problem.splits] == [100, 60, 20]


def test_names_of_data_sets(tmp_path):
    problem = problems.find("translate_tsv_rev:news")
    assert problem.name == "translate_tsv_rev:news" and problem.is_reversed
    assert problem.directory("data") == Path("data/translate_tsv-news")
    assert "--problem=translate_tsv_rev:news" in problem.datagen_command("data")
    for name in ("translate_tsv:", "translate_tsv:../x"):
        with pytest.raises(ValueError, match="cannot name a data set; letters"):
            problems.find(name)
    with pytest.raises(ValueError, match="is not made from files of yours"):
        problems.find("image_digits:mine")


@pytest.mark.slow
def test_the_page_s_training_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "letters.jsonl", [{"text": text} for text in TEXTS])
    options = "files=letters.jsonl,vocab_size=300"
    problems.find("languagemodel_records:letters", options).prepare("data")
    (command,) = [words for words in commands(PAGE) if words[0] == "t2tp_trainer"]
    assert t2tp_trainer(command) == 0
    assert run_files.read_flags("run")["problem"] == ("languagemodel_records:letters")


def test_the_commands_of_the_page_do_what_it_says(tmp_path, monkeypatch):
    """Instead of running commands that train, the test only opens their data."""
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{number}.txt").write_text(text)
    write(tmp_path / "reviews.jsonl", RECORDS)
    write(tmp_path / "letters.jsonl", [{"text": text} for text in TEXTS])
    pairs = [{"en": text, "de": text[::-1]} for text in TEXTS]
    write(tmp_path / "pairs.csv", pairs)
    write(tmp_path / "mails.parquet", RECORDS)
    translations = [{"translation": pair} for pair in pairs]
    saved(tmp_path / "saved", {"train": translations[:100], "validation": translations[100:]})
    write(tmp_path / "hub" / "train-00000-of-00001.parquet", [{"text": text} for text in TEXTS])
    shown = commands(PAGE)
    assert len(shown) == 10
    (own_vocabulary,) = blocks("own_data.md", "python")
    exec(own_vocabulary, {})
    for program, *arguments in shown:
        flags = dict(each.removeprefix("--").split("=", 1) for each in arguments)
        options = flags.get("problem_options", "")
        if program == "t2tp_datagen":
            problems.find(flags["problem"], options).prepare(flags["data_dir"])
        problem = problems.find(flags["problem"])  # without options
        batch = problem.stream("data", "train", 2, 512)[0]
        assert (batch["targets"][:] > 0).any() or "text2class" in flags["problem"]
    assert {path.name for path in Path("data").iterdir() if path.name[0] != "."} == {
        "languagemodel_textfiles",
        "languagemodel_textfiles-pieces",
        "languagemodel_records",
        "languagemodel_records-hub",
        "languagemodel_records-letters",
        "mixture_languagemodel_records+languagemodel_records-letters",
        "text2class_records",
        "text2text_records",
        "text2text_records-saved",
    }
