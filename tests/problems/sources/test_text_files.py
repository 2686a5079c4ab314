import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2tp import problems
from t2tp.problems.sources.user_files import LineRange, Paragraphs, find_files, read_file
from tests.problems.decoded import all_decoded, decoded

SMALL = "vocab_size=288"


def pairs(directory, lines):
    (directory / "pairs.tsv").write_bytes(lines)
    return problems.find("translate_tsv", f"files={directory}/*.tsv,{SMALL}")


GOOD = b"".join(b"a tab is no %d\tein Tab ist kein %d\r\n" % (i, i) for i in range(100))


def test_pairs_of_a_tsv_come_back(tmp_path):
    problem = pairs(tmp_path, GOOD)
    manifest = problem.prepare(tmp_path / "data")
    assert [sizes.examples for sizes in manifest.splits.values()] == [94, 3, 3]
    assert manifest.splits["train"].bytes > 94 * 30
    found = {tuple(sample.values()) for sample in all_decoded(problem, tmp_path / "data")}
    assert found == {(f"a tab is no {i}", f"ein Tab ist kein {i}") for i in range(100)}


def test_an_empty_side_is_skipped_and_counted(tmp_path):
    problem = pairs(tmp_path, GOOD + b"\tx\ny\t\n" * 50)
    manifest = problem.prepare(tmp_path / "data")
    skipped = sum(sizes.skipped.get("a side is empty", 0) for sizes in manifest.splits.values())
    assert skipped == 100


A, B, EMPTY = {"a.txt": "one\ntwo\n"}, {"b.txt": "three\n"}, {f"{i}.txt": "" for i in range(7)}


CASES = [
    (A, "", "2 samples .*train, validation, test: give documents=lines, or validation_files"),
    (A | B, ",validation_files=b.txt", "1 sample .*validation, test: give .*, or test_files"),
    (A | B, ",test_files=b.txt", "test_files without validation_files: give validation_files"),
    ({"a.txt": "x" * 33_554_433 + "\n" * 60}, ",documents=lines", "1: a text of 33,554,433 b"),
    (A | EMPTY, ",validation_files=*[0-6].txt", "no text in 0.txt, .*, 4.txt and 2 more"),
]


@pytest.mark.parametrize(("files", "options", "message"), CASES)
def test_too_little_text_is_said_with_what_to_do(tmp_path, monkeypatch, files, options, message):
    monkeypatch.chdir(tmp_path)
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    with pytest.raises(ValueError, match=message):
        problems.find("languagemodel_textfiles", f"files=a.txt{options}").prepare("data")


def test_files_that_are_not_named_or_not_there_are_said(tmp_path):
    with pytest.raises(ValueError, match="no files are given: use the option files"):
        problems.find("translate_tsv").prepare(tmp_path)
    with pytest.raises(ValueError, match=r"files=.*/\*\.tsv matches no file"):
        problems.find("translate_tsv", f"files={tmp_path}/*.tsv").prepare(tmp_path)
    with pytest.raises(ValueError, match=r"files=s3://b/\*.tsv: expected files on this host"):
        problems.find("translate_tsv", "files=s3://b/*.tsv").prepare(tmp_path)


def parallel_options(directory, train, validation):
    """Returns the options for parallel files of these names, without their endings."""
    return ",".join(
        f"{prefix}{side}={directory}/{name}.{ending}"
        for prefix, name in (("", train), ("validation_", validation))
        for side, ending in (("inputs", "en"), ("targets", "de"))
    )


def test_parallel_files(tmp_path):
    for name in ("train", "held_out"):
        for language, word in (("en", "yes"), ("de", "ja")):
            lines = [f"{word} {name} {i}" for i in range(50)]
            (tmp_path / f"{name}.{language}").write_text("\n".join(lines))
    options = f"{SMALL},{parallel_options(tmp_path, 'train', 'held_out')}"
    problem = problems.find("translate_textfiles", options)
    manifest = problem.prepare(tmp_path / "data")
    assert [sizes.examples for sizes in manifest.splits.values()] == [50, 25, 25]
    for sample in all_decoded(problem, tmp_path / "data"):
        assert sample["targets"] == sample["inputs"].replace("yes", "ja")
    again = problems.find("translate_textfiles")  # the data record their options
    assert again.decode_example(tmp_path / "data", "train", 0)["inputs"].startswith("yes train")
    other = problems.find("translate_textfiles", "vocab_size=300")
    with pytest.raises(ValueError, match="were made with vocab_size=288, not 300"):
        other.check_prepared(tmp_path / "data")


@pytest.mark.parametrize(("documents", "count"), [("files", 40), ("lines", 80)])
def test_language_modelling_on_text_files(tmp_path, documents, count):
    for i in range(40):
        path = tmp_path / "texts" / str(i % 3) / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"\tDocument {i}\nhas two  lines\n")
    options = f"files={tmp_path}/texts/**/*.txt,documents={documents},{SMALL}"
    problem = problems.find("languagemodel_textfiles", options)
    manifest = problem.prepare(tmp_path / "data")
    assert sum(sizes.examples for sizes in manifest.splits.values()) == count
    text = b"".join(problem.split_text(tmp_path / "data", split) for split in manifest.splits)
    size = sum(path.stat().st_size for path in tmp_path.glob("texts/*/*.txt"))
    assert len(text) == size - (count if documents == "lines" else 0)
    assert b"\tDocument 17" in text


@pytest.mark.parametrize("files", [1, 2])
def test_one_long_text_is_cut_into_contiguous_parts(tmp_path, files):
    text = "".join(f"line {number}\n" for number in range(500))
    for number in range(files):
        (tmp_path / f"{number}.txt").write_text(text)
    problem = problems.find("languagemodel_textfiles", f"files={tmp_path}/*.txt,{SMALL}")
    problem.prepare(tmp_path / "data")
    validation, test, train = (
        problem.split_text(tmp_path / "data", split).decode()
        for split in ("validation", "test", "train")
    )
    assert "\n".join([validation, test, train]) == (text * files).removesuffix("\n")
    assert validation.count("\n") + 1 == 15 * files


def test_paragraphs_are_documents(tmp_path):
    content = b"\xef\xbb\xbfone\n1\n\ntwo\r\n\r\n\r\nthree\n"
    (tmp_path / "a").write_bytes(content)
    for size in range(1, 8):
        texts = Paragraphs([tmp_path / "a"], tmp_path / str(size), piece_bytes=size)
        assert [*filter(None, map(texts.__getitem__, range(len(texts))))] == [
            "one\n1",
            "two",
            "three",
        ]
    (tmp_path / "b").write_bytes(b"one\n\ntwo\n\nthree\n\xff\n")
    texts = Paragraphs([tmp_path / "b"], tmp_path)
    with pytest.raises(ValueError, match="b, line 6: not UTF-8"):
        texts[2]


def test_lines_of_several_files_are_numbered_through(tmp_path):
    contents = [b"one\ntwo\r\n\nlast", b"", b"x\n"]
    for name, each in zip("abc", contents, strict=True):
        (tmp_path / name).write_bytes(each)
    lines = LineRange([tmp_path / name for name in "abc"], tmp_path, piece_bytes=3)
    assert [lines[number] for number in range(len(lines))] == ["one", "two", "", "last", "x"]
    assert lines.location(3) == f"{tmp_path}/a, line 4"
    assert lines.location(4) == f"{tmp_path}/c, line 1"
    (tmp_path / "a").write_text('1,"two\nlines"\n"3\n",4\n')
    rows = LineRange([tmp_path / "a"], tmp_path, quoted=True, piece_bytes=3)
    assert [*map(rows.__getitem__, range(len(rows)))] == ['1,"two\nlines"', '"3\n",4']


def test_line_ends_are_looked_for_once_and_again_in_a_file_that_changed(tmp_path, monkeypatch):
    """The index in the scratch directory is shared by all splits and processes."""
    problem = pairs(tmp_path, GOOD)
    problem.prepare(tmp_path / "data", tmp_path / "tmp")
    with monkeypatch.context() as changed:
        changed.setattr("t2tp.problems.sources.user_files._find_line_ends", None)
        for split in problem.splits:
            assert len(problem.samples(split, tmp_path, tmp_path / "tmp"))
    before = sum(len(problem.samples(s, tmp_path, tmp_path / "tmp")) for s in problem.splits)
    (tmp_path / "pairs.tsv").write_bytes(GOOD + b"a\tb\n")
    after = sum(len(problem.samples(s, tmp_path, tmp_path / "tmp")) for s in problem.splits)
    assert after == before + 1


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbfone\n\xff\n")
    assert read_file(tmp_path / "a") == "one\n\ufefftwo\n"
    lines = LineRange([tmp_path / "a"], tmp_path)
    assert [lines[0], lines[1]] == ["one", "\ufefftwo"]
    with pytest.raises(ValueError, match="b, line 2: not UTF-8 .*byte 0xff"):
        read_file(tmp_path / "b")


@pytest.fixture
def texts(tmp_path):
    """Writes nine texts, and a link to one of them."""
    directory = tmp_path / "texts"
    directory.mkdir()
    for number in range(9):
        (directory / f"{number}.txt").write_text(f"the text number {number}\n")
    (directory / "link.txt").symlink_to(directory / "8.txt")
    return directory


SPLITS = [
    ("*.txt,validation_files={}/[78].txt", "0123456", "7", "8"),
    ("**/**/*.txt,validation_files={}/[678].txt", "012345", "68", "7"),
    ("*.txt,validation_files={}/[678].txt,test_files={}/8.txt", "012345", "67", "8"),
    ("[0-7].txt,validation_files={}/6.txt,test_files={}/link.txt", "0123457", "6", "8"),
]


@pytest.mark.parametrize(("options", "train", "validation", "test"), SPLITS)
def test_a_file_is_in_one_split_only(texts, tmp_path, options, train, validation, test):
    options = f"files={texts}/{options.format(texts, texts)},vocab_size=280"
    problem = problems.find("languagemodel_textfiles", options)
    problem.prepare(tmp_path / "data")
    found = decoded(problem, tmp_path / "data")
    for split, numbers in (("train", train), ("validation", validation), ("test", test)):
        texts = [f"the text number {number}\n" for number in numbers]
        assert sorted(each["text"] for each in found[split]) == texts


def test_files_that_are_held_out_are_named(texts, tmp_path, caplog):
    options = f"files={texts}/*.txt,validation_files={texts}/[678].txt,vocab_size=280"
    problems.find("languagemodel_textfiles", options).prepare(tmp_path / "data")
    assert f"left out of train, as they are held out: {texts}/6.txt and 2 more" in caplog.text
    (texts / "1.txt").write_text("changed")
    options = f"files={texts}/7.txt,validation_files={texts}/[678].txt"
    with pytest.raises(ValueError, match="nothing is left for train, as all its files are held "):
        problems.find("languagemodel_textfiles", options).prepare(tmp_path / "other")


def test_parallel_files_that_are_held_out_are_left_out_in_pairs(tmp_path):
    for number in range(5):
        for side in ("en", "de"):
            (tmp_path / f"{number}.{side}").write_text(f"{side} {number}\n" * 2)
    options = f"vocab_size=268,{parallel_options(tmp_path, '*', '[34]')}"
    problem = problems.find("translate_textfiles", options)
    problem.prepare(tmp_path / "data")
    found = [tuple(sample.values()) for sample in all_decoded(problem, tmp_path / "data")]
    assert sorted(found[:6]) == [(f"en {n}", f"de {n}") for n in range(3) for _ in range(2)]


@pytest.mark.parametrize("name", ["v[1]", "a*b?", "a,b", "a,c=d", "new\nline", "**"])
def test_a_path_of_any_name_is_found_and_so_is_a_pattern_below_it(tmp_path, name):
    directory = tmp_path / name
    directory.mkdir()
    (tmp_path / "aXbY").mkdir()
    (directory / "t[0].txt").write_text("text")
    assert find_files(str(directory / "t[0].txt"), "files") == [directory / "t[0].txt"]
    assert find_files(f"{directory}/*.txt", "files") == [directory / "t[0].txt"]
    assert find_files(f"{directory}/**/t[[]?].txt", "files") == [directory / "t[0].txt"]
    # In the options of a problem, a text with commas is quoted.
    quoted = f"files={str(directory / 't[0].txt')!r}"
    problem = problems.find("languagemodel_textfiles", quoted)
    assert problem.options.files == str(directory / "t[0].txt")


@given(st.text(alphabet="ab ,='\"[]\\\n:{}é*", max_size=8).filter(str.strip))
def test_the_command_that_makes_data_again_has_the_same_options(text):
    problem = problems.find("languagemodel_textfiles", f"files={text!r},documents=lines")
    (options,) = (
        word.removeprefix("--problem_options=")
        for word in shlex.split(problem.datagen_command("data"))
        if word.startswith("--problem_options=")
    )
    again = problems.find("languagemodel_textfiles", options)
    assert again.options.values() == problem.options.values()


def test_an_unquoted_comma_in_a_path_is_explained(tmp_path):
    with pytest.raises(ValueError, match='quotes: files="/a,b.txt"'):
        problems.find("languagemodel_textfiles", "files=/a,b.txt")
