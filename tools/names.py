"""Checks that every name in a docstring, a comment or a message of the source exists.

    python -m tools.names

Also checks that the flags of all commands in pages exist, and that the programs read every flag
that they declare. Wrong names are listed, and the
exit code is 1.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import io
import os
import re
import shlex
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import t2tp.hparams  # noqa: F401 (registers the sets)
from t2tp import registry
from t2tp.trainer.cli import flag_groups
from t2tp.trainer.cli.flag_groups import flag_table
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.cli.run_program import ProgramSpec
from t2tp.trainer.errors import UsageError
from t2tp.trainer.eval_config import EvalConfig
from t2tp.trainer.run_config import RunConfig
from tools import page_commands

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
CLI = "t2tp.trainer.cli"
OUTSIDE = re.compile(r"^(?:tf|tfds|tensorflow|np|torch|transformers|optuna|absl)\.|^_|\d$|\.$")


@functools.cache
def modules() -> dict[Path, ast.Module]:
    """Returns the syntax tree of each module of the source."""
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


def unknown_flags() -> Iterator[str]:
    """Yields the flags in docstrings, comments and messages that no program has."""
    known = {name for spec in PROGRAMS.values() for name in flag_groups.define(spec.groups)}
    known |= set(flag_table()) | OTHER_FLAGS
    for place, text in texts():
        is_style_sheet = "{--" in text or "var(--" in text
        if place.endswith(".md") or is_style_sheet or "--" not in text:
            continue
        for flag in re.findall(r"(?<![\w-])--([a-z]\w+)(?![\w-])", text):
            if flag not in known and flag.removeprefix("no") not in known:
                yield f"{place}: --{flag}"


def refused_commands() -> Iterator[str]:
    """Parses each command with its program's flags and the flags that the program passes on."""
    # The configs that commands name, as in --config=RUN/run.yaml.
    for path in map(Path, ("run.yaml", "RUN/run.yaml")):
        path.parent.mkdir(exist_ok=True)
        path.write_text("model: m\n")
    for place, program, given in commands():
        if program not in PROGRAMS:
            yield f"{place}: {program}"
            continue
        spec = PROGRAMS[program]
        inner = [group for each in spec.positional for group in each.groups]
        known = {name for group in (*spec.groups, *inner) for name in group.rows}
        for flag in re.findall(r"--(\w+)", " ".join(given)):
            if flag not in known and flag.removeprefix("no") not in known:
                yield f"{place}: {program} --{flag}"
        if not any("=" in word for word in given):
            continue  # This string only names a flag.
        cut = given.index("--") if "--" in given else len(given)
        rest = PROGRAMS["t2tp_trainer"].groups
        try:
            flag_groups.parse(spec.groups, [program, *given[:cut]], spec.positional)
            flag_groups.parse(rest, ["t2tp_trainer", *given[cut + 1 :]])
        except UsageError as error:
            yield f"{place}: {program} {shlex.join(given)}: {error}"


def unknown_flags_in_pages() -> Iterator[str]:
    """Yields the flags in commands of pages that the program, or the one that it starts, lacks."""
    for page in page_commands.PAGES:
        shown = [*page_commands.commands(page), *page_commands.inline_commands(page)]
        for program, *arguments in shown:
            if program == "echo":
                continue
            starts = (n for n, word in enumerate(arguments) if word in (*PROGRAMS, "--"))
            cut = next(starts, len(arguments))
            inner = "t2tp_trainer" if arguments[cut : cut + 1] in ([], ["--"]) else arguments[cut]
            for name, words in ((program, arguments[:cut]), (inner, arguments[cut + 1 :])):
                known = flag_groups.define(PROGRAMS[name].groups) if words else {}
                for flag in (re.match(r"--(\w+)|", word)[1] for word in words):
                    if flag and flag not in known and flag.removeprefix("no") not in known:
                        yield f"{page}: {name} --{flag}"


def missing_pages() -> Iterator[str]:
    """Yields the pages that docstrings, messages and other pages name, and that do not exist."""
    pages = {path.name for path in [*REPOSITORY.rglob("docs/*.md"), *REPOSITORY.glob("*.md")]}
    pages |= OTHER_PAGES | {"hparams_sets.md", "programs.md", "hparams.md"}
    for place, text in texts():
        for page in re.findall(r"\b[\w-]+\.md\b", text) if ".md" in text else ():
            if page not in pages:
                yield f"{place}: {page}"


def missing_members() -> Iterator[str]:
    """Yields each `Class.member` of which the class has no such member."""
    known = attributes()
    for place, text in texts():
        for name, member in re.findall(r"\b([A-Z]\w+)\.([a-z_]\w*)", text):
            full = f"{name}.{member}"
            if name in known and full not in OTHER_MEMBERS and member not in known[name]:
                yield f"{place}: {full}"


def missing_modules() -> Iterator[str]:
    """Yields each `t2tp.package.name` that is neither a module nor defined in a package."""
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
            if not (exists or path.suffix or len(path.name) == 1):
                yield f"{place}: {name}"


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


def unknown_names() -> Iterator[str]:
    """Yields the names in backticks in docstrings that occur nowhere in the code."""
    known = words() | OTHER_NAMES
    for path, module in modules().items():
        for node in ast.walk(module):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                continue
            for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", ast.get_docstring(node) or ""):
                if not OUTSIDE.search(name) and not set(name.split(".")) <= known:
                    yield f"{path.relative_to(REPOSITORY)}: `{name}`"


@functools.cache
def definitions(module: str) -> tuple[dict[str, ast.AST], dict[str, tuple[str, str]]]:
    """Returns the definitions of a module of trainer/cli, and the (module, name) of each import."""
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text("utf-8"))
    own: dict[str, ast.AST] = {}
    for node in tree.body:
        for target in getattr(node, "targets", [getattr(node, "target", node)]):
            own[getattr(target, "id", getattr(target, "name", ""))] = node
    imported = {
        alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith(CLI)
        for alias in node.names
    }
    return own, imported


def names_read(spec: ProgramSpec) -> set[str]:
    """Returns the attributes and texts in all functions of trainer/cli that a program may call."""
    texts = (spec.body, *spec.answers.values(), f"{CLI}.run_program:run_program")
    new, seen, read = {tuple(text.split(":")) for text in texts}, set(), set()
    while new:
        module, name = new.pop()
        seen.add((module, name))
        own, imported = definitions(module)
        for node in ast.walk(own[name]):
            if isinstance(node, ast.Constant):
                read.add(node.value)
            elif isinstance(node, ast.Attribute):
                of = node.value
                read |= {node.attr} if ast.unparse(of).endswith("flags") else set()
                if isinstance(of, ast.Name) and imported.get(of.id, ("",))[0] == CLI:
                    new |= {(f"{CLI}.{of.id}", node.attr)} - seen
            elif isinstance(node, ast.Name):
                new |= {(module, node.id)} - seen if node.id in own else set()
                new |= {imported[node.id]} - seen if node.id in imported else set()
                # `spec_from_flags` reads the flags that have the names of these fields.
                settings = (RunConfig, EvalConfig) if node.id == "fields" else ()
                read |= {each.name for kind in settings for each in fields(kind)}
        new = {each for each in new if each[0] != CLI}
    return read


def unread_flags() -> Iterator[str]:
    """Yields the flags that a program declares and that none of its functions reads."""
    for spec in PROGRAMS.values():
        values = flag_groups.define(spec.groups)
        names = {name for name in values if values[name].name == name}
        for name in sorted(names - {*spec.answers, "h", "helpfull"} - names_read(spec)):
            yield f"{spec.name}: nothing reads --{name}"


CHECKS = (
    *(unknown_flags, unknown_flags_in_pages, refused_commands, unread_flags, unknown_names),
    *(missing_pages, missing_members, missing_modules),
)


def main() -> int:
    """Prints the wrong names of all checks, and returns the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        wrong = [f"{check.__name__}: {each}" for check in CHECKS for each in check()]
        os.chdir(REPOSITORY)
    print("\n".join(wrong) or "names: every name exists")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
