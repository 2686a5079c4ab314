"""Every name in a docstring, a comment or a message of the source exists."""

import ast
import builtins
import functools
import io
import re
import shlex
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import t2tp.hparams  # noqa: F401 (registers the sets)
from t2tp import registry
from t2tp.trainer.cli import flag_groups
from t2tp.trainer.cli.flag_groups import flag_table
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.errors import UsageError

REPOSITORY = Path(__file__).parent.parent
SOURCE = ("t2tp", "trainer", "problems", "hparams")

# Flags of other programs that messages and docstrings mention.
OTHER_FLAGS = {"direct_num_workers", "direct_running_mode", "format", "name", "no", "runner"}
# Of TensorFlow.
OTHER_FLAGS |= {"tf_xla_persistent_cache_directory", "xla_gpu_per_fusion_autotune_cache_dir"}
# Files and attributes of other projects that look like ours.
OTHER_PAGES = {"SECURITY.md"}
OTHER_MEMBERS = {"SelfAttention.relative_attention_bias"}
# Backticked names from TensorFlow, Hugging Face, tensor2tensor and Unix, and examples of names.
OTHER_NAMES = {"Conv1D", "Einsum", "ExponentialMovingAverage", "GpuBackendConfig", "bos_token"}
OTHER_NAMES |= {"mtf_bitransformer", "mtf_image_transformer", "mtf_resnet", "mtf_unitransformer"}
OTHER_NAMES |= {"cifar_4x", "cifar_mp_4x", "save_pretrained", "save_to_disk", "timeout_seconds"}
OTHER_NAMES |= {"first_n", "length_groups", "manual", "maximum_iterations", "name_position"}
OTHER_NAMES |= {"interleaved", "name_segmentation", "nohup"}
OUTSIDE = re.compile(r"^(?:tf|tfds|tensorflow|np|torch|transformers|optuna|absl)\.|^_|\d$|\.$")


@functools.cache
def modules() -> dict[Path, ast.Module]:
    paths = sorted(path for top in SOURCE for path in (REPOSITORY / top).rglob("*.py"))
    return {path: ast.parse(path.read_text("utf-8")) for path in paths}


@functools.cache
def texts() -> list[tuple[str, str]]:
    """Returns (place, text) of each string and comment of the source, and of each page."""
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for path, module in modules().items():
        place = str(path.relative_to(REPOSITORY))
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{place}:{node.lineno}", node.value
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
            if token.type == tokenize.COMMENT:
                yield f"{place}:{token.start[0]}", token.string
    for spec in PROGRAMS.values():
        yield f"{spec.name} --help", spec.intro
    for page in [*sorted((REPOSITORY / "docs").glob("*.md")), *REPOSITORY.glob("*.md")]:
        yield str(page.relative_to(REPOSITORY)), page.read_text("utf-8")


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """Yields (place, program, arguments) of each command in a string of the source or `--help`.

    An X in an argument stands for an unknown value.
    """
    found = [(f"{spec.name} --help", spec.intro) for spec in PROGRAMS.values()]
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, (ast.JoinedStr, ast.Constant)):
                pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
                constants = (isinstance(each, ast.Constant) and str(each.value) for each in pieces)
                text = "".join(constant or "X" for constant in constants)
                found.append((f"{path.relative_to(REPOSITORY)}:{node.lineno}", text))
    for place, text in found:
        for program, rest in re.findall(r"\b(t2tp_\w+)((?: \\?\s*--?[\w=:;,.*/'{}-]+)+)", text):
            yield place, program, shlex.split(rest.replace("\\\n", ""))


@functools.cache
def attributes() -> dict[str, set[str]]:
    """Returns class name -> names in the body of the class and of the classes it inherits from."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    bases: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules().values():
        for node in ast.walk(module):
            if not isinstance(node, ast.ClassDef):
                continue
            bases[node.name] |= {ast.unparse(base).split("[")[0] for base in node.bases}
            for each in ast.walk(node):
                if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    found[node.name].add(each.name)
                elif isinstance(each, (ast.Name, ast.Attribute)) and isinstance(
                    each.ctx, ast.Store
                ):
                    found[node.name].add(each.id if isinstance(each, ast.Name) else each.attr)

    def all_of(name: str) -> set[str] | None:
        """Returns the names of a class, or None if one of its bases is defined elsewhere."""
        if name.split(".")[-1] in ("object", "Protocol", "NamedTuple", "Generic", "ABC", "Enum"):
            return set(dir(tuple))
        if name not in found:
            return None
        inherited = [all_of(base) for base in bases[name]]
        return None if None in inherited else found[name].union(*inherited)

    return {name: names for name in found if (names := all_of(name)) is not None}


def test_flags_exist():
    known = {name for spec in PROGRAMS.values() for name in flag_groups.define(spec.groups)}
    known |= set(flag_table()) | OTHER_FLAGS
    for place, text in texts():
        is_style_sheet = "{--" in text or "var(--" in text
        if place.endswith(".md") or is_style_sheet or "--" not in text:
            continue
        for flag in re.findall(r"(?<![\w-])--([a-z]\w+)(?![\w-])", text):
            assert flag in known or flag.removeprefix("no") in known, (place, flag)


def test_commands_are_taken_by_their_programs(tmp_path, monkeypatch):
    """Parses each command with its program's flags and the flags that the program passes on."""
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "run.yaml", tmp_path / "RUN/run.yaml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("model: m\n")
    parsed = 0
    for place, program, words in commands():
        assert program in PROGRAMS, (place, program)
        spec = PROGRAMS[program]
        inner = [group for each in spec.positional for group in each.groups]
        known = {name for group in (*spec.groups, *inner) for name in group.rows}
        for flag in re.findall(r"--(\w+)", " ".join(words)):
            assert flag in known or flag.removeprefix("no") in known, (place, program, flag)
        if not any("=" in word for word in words):
            continue  # This string only names a flag.
        cut = words.index("--") if "--" in words else len(words)
        rest = PROGRAMS["t2tp_trainer"].groups
        try:
            flag_groups.parse(spec.groups, [program, *words[:cut]], spec.positional)
            flag_groups.parse(rest, ["t2tp_trainer", *words[cut + 1 :]])
        except UsageError as error:
            raise AssertionError(f"{place}: {program} {shlex.join(words)}") from error
        parsed += 1
    assert parsed > 15


def test_pages_exist():
    pages = {path.name for path in [*REPOSITORY.rglob("docs/*.md"), *REPOSITORY.glob("*.md")]}
    pages |= OTHER_PAGES | {"hparams_sets.md", "programs.md", "hparams.md"}
    for place, text in texts():
        for page in re.findall(r"\b[\w-]+\.md\b", text) if ".md" in text else ():
            assert page in pages, (place, page)


def test_members_of_classes_exist():
    known = attributes()
    for place, text in texts():
        for name, member in re.findall(r"\b([A-Z]\w+)\.([a-z_]\w*)", text):
            if name in known and f"{name}.{member}" not in OTHER_MEMBERS:
                assert member in known[name], (place, f"{name}.{member}")


def test_modules_exist():
    for place, text in texts():
        for name in re.findall(r"\bt2tp(?:\.[a-z_]\w*)+", text):
            path = REPOSITORY / "t2tp"
            for part in name.split(".")[1:]:
                home = REPOSITORY if path.name == "t2tp" and part in SOURCE else path
                path = home / part
                if path.with_suffix(".py").is_file() or not path.is_dir():
                    break
            parent = path.parent / "__init__.py"
            defined = parent.is_file() and re.search(rf"\b{path.name}\b", parent.read_text("utf-8"))
            exists = path.is_dir() or path.with_suffix(".py").is_file() or defined
            assert exists or path.suffix or len(path.name) == 1, (place, name)


@functools.cache
def words() -> set[str]:
    """Returns all names in code and TOML files, and all words in strings except docstrings."""
    found = {*dir(builtins), *sys.stdlib_module_names, *registry.list_hparams()}
    for path in (REPOSITORY / "t2tp").rglob("*.toml"):
        found |= set(re.findall(r"\w+", path.read_text("utf-8")))
    for spec in PROGRAMS.values():
        found |= {spec.name, *re.findall(r"\w+", spec.intro), *(p.name for p in spec.positional)}
    for path, module in modules().items():
        found |= {path.stem, path.parent.name}
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = {
            id(node.body[0].value)
            for node in ast.walk(module)
            if isinstance(node, documented) and ast.get_docstring(node) is not None
        }
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in docs:
                    found |= set(re.findall(r"\w+", node.value))
            else:
                for field in ("id", "attr", "arg", "name", "asname"):
                    value = getattr(node, field, None)
                    found |= set(value.split(".")) if isinstance(value, str) else set()
    return found


def test_backticked_names_of_docstrings_exist():
    known = words() | OTHER_NAMES
    for path, module in modules().items():
        for node in ast.walk(module):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                continue
            for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", ast.get_docstring(node) or ""):
                if OUTSIDE.search(name):
                    continue
                place = path.relative_to(REPOSITORY), name
                assert set(name.split(".")) <= known, place
