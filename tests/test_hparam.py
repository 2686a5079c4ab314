"""HParams: typed values that are read from text and JSON; errors are plain sentences."""

import copy
import doctest
import keyword
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2tp.hparam import NOT_DECLARED, HParams, describe_differences
from t2tp.hparams import base
from t2tp.trainer.run_dir import run_files
from tests.cases import mistakes


def sample() -> HParams:
    hparams = HParams(
        learning_rate=0.1,
        layers=["attention", "dense"],
        num_layers=4,
        mesh_shape="",
        layout="",
        shared=True,
        widths=[1.5, 2.0],
        norm="none",
    )
    hparams.add("x", None, "anything at all")
    hparams.add("clip", None, "largest gradient norm", type=float)
    hparams.add("label", "a", type=str | None)
    hparams.add("heads", [], type=list[int])
    return hparams


# Reading and setting.


def test_values_are_attributes_in_the_order_of_declaration():
    hparams = HParams(b=1, a="x")
    hparams.b = 2
    hparams.set("a", "y")
    assert (hparams.b, hparams.get("a")) == (2, "y")
    assert list(hparams.values().items()) == [("b", 2), ("a", "y")]
    assert "a" in hparams
    assert "c" not in hparams


CASES = [
    ("learning_rate", 1, 1.0),
    ("learning_rate", np.float64(0.5), 0.5),
    ("num_layers", 3.0, 3),
    ("layers", ("a",), ["a"]),
    ("widths", [1, 2.5], [1.0, 2.5]),
    ("clip", 2, 2.0),
    ("x", "text", "text"),
    ("x", [1, True], [1, True]),
    ("heads", [8.0], [8]),
]


@pytest.mark.parametrize(("name", "value", "kept"), CASES)
def test_a_value_becomes_exactly_the_declared_type(name: str, value: Any, kept: Any):
    hparams = sample()
    hparams.set(name, value)
    assert repr(hparams.get(name)) == repr(kept)


REFUSED = [
    ("learning_rate", "0.1", "float"),
    ("learning_rate", True, "float"),
    ("learning_rate", math.nan, "float"),
    ("learning_rate", 10**400, "float"),
    ("num_layers", 2.5, "int"),
    ("num_layers", math.inf, "int"),
    ("num_layers", [1], "int"),
    ("shared", 1, "bool"),
    ("mesh_shape", 4, "str"),
    ("layers", "attention", "list[str]"),
    ("layers", ["a", 1], "list[str]"),
    ("heads", [1.5], "list[int]"),
    ("clip", "x", "float | None"),
    ("x", {"a": 1}, "any"),
]


@pytest.mark.parametrize(("name", "value", "expected"), REFUSED)
def test_a_value_of_another_type_is_refused(name: str, value: Any, expected: str):
    hparams = sample()
    with pytest.raises(TypeError) as error:
        setattr(hparams, name, value)
    message = f"{name}: expected {expected}, got {value!r} ({type(value).__name__})"
    assert str(error.value) == message
    assert hparams == sample()


def test_an_undeclared_name_is_refused_naming_the_nearest():
    hparams = sample()
    for use, *value in ((setattr, "x"), (HParams.set, "x"), (getattr,), (HParams.get,)):
        with pytest.raises(AttributeError, match="^no hyperparameter 'layoyt': did you mean layo"):
            use(hparams, "layoyt", *value)


# Declaring.


@pytest.mark.parametrize("typo", ["range", "minn"])
def test_a_misspelt_row_is_an_error(monkeypatch, typo):
    row = {"default": 1, "help": "", typo: "szie"}
    monkeypatch.setattr(base, "_declarations", lambda: {"group": {"name": row}})
    with pytest.raises((KeyError, TypeError), match="szie|minn"):
        base.declare(HParams(), "group")


def test_a_name_is_declared_once():
    with pytest.raises(ValueError, match="layout is declared already, as str ''"):
        sample().add("layout", "x")


@pytest.mark.parametrize("name", ["a-b", "class", "_hidden", "3d", "parse", "values", "layers[1]"])
def test_a_name_is_an_identifier_and_no_method(name: str):
    with pytest.raises(ValueError, match="cannot name a hyperparameter"):
        HParams().add(name, 1)


@pytest.mark.parametrize("default", [{"a": 1}, [[1]], [None], len, ["a", 1], []])
def test_other_defaults_are_refused(default: Any):
    said = r"add\('it', \[\], type=list\[int\]\)" if default == [] else "^it: "
    with pytest.raises((TypeError, ValueError), match=said):
        HParams(it=default)


def test_other_types_cannot_be_declared():
    for default, kind, said in (
        (None, dict, "as <class 'dict'>"),
        ([], [int], "as [<class 'int'>]"),
    ):
        with pytest.raises(TypeError, match=re.escape(f"cannot be declared {said}")):
            HParams().add("it", default, type=kind)
    with pytest.raises(TypeError, match="expected int, got 'a'"):
        HParams().add("it", "a", type=int)


# Copies and comparison.


COPIES = [HParams.copy, copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]


@pytest.mark.parametrize("copied", COPIES)
def test_copies_are_equal_and_typed(copied):
    made = copied(sample())
    assert made == sample() and made.help("clip") == "largest gradient norm"
    with pytest.raises(TypeError):
        made.num_layers = "x"


def test_a_copy_shares_nothing():
    hparams = sample()
    copied = hparams.copy()
    copied.layers.append("dense")
    copied.add("new", 1)
    copied.num_layers = 9
    hparams.values()["layers"].append("dense")
    assert hparams == sample()
    assert copied != hparams


def test_a_list_changed_in_place_to_another_type_is_not_saved():
    hparams = sample()
    hparams.layers.append(3)
    with pytest.raises(TypeError, match=r"layers: expected list\[str\]"):
        hparams.values()


def test_equality_minds_types_but_not_order():
    assert HParams(a=1, b=2) == HParams(b=2, a=1)
    assert HParams(a=1) not in (HParams(a=1.0), HParams(a=True), HParams(a=1, b=2), "HParams(a=1)")
    assert HParams(a=[1]) != HParams(a=[1.0])


def test_diff_names_both_values():
    assert HParams(a=1, b=2, c=3).diff(HParams(a=1, b=5, d=6)) == [
        ("b", 2, 5),
        ("c", 3, NOT_DECLARED),
        ("d", NOT_DECLARED, 6),
    ]


# Text.


READABLE = [
    ("", {}),
    ("learning_rate=1", {"learning_rate": 1.0}),
    (" learning_rate = 1e-3 , num_layers = 5 ", {"learning_rate": 0.001, "num_layers": 5}),
    ("num_layers=1e3", {"num_layers": 1000}),
    ("num_layers='4'", {"num_layers": 4}),
    ("mesh_shape=a:2;b:4,layout=c:a;d:b", {"mesh_shape": "a:2;b:4", "layout": "c:a;d:b"}),
    ("mesh_shape=/a/b*.txt", {"mesh_shape": "/a/b*.txt"}),
    ("layers=[ a , 'b, c' ],num_layers=2", {"layers": ["a", "b, c"], "num_layers": 2}),
    ("widths=[1,2e-1]", {"widths": [1.0, 0.2]}),
    ("layout=\"a, b=1, 'c'\"", {"layout": "a, b=1, 'c'"}),
    (r"layout='it\'s, \n'", {"layout": "it's, \n"}),
    ("layout=it's,mesh_shape=a[0]", {"layout": "it's", "mesh_shape": "a[0]"}),
    ("layout=a[0,mesh_shape=b]", {"layout": "a[0", "mesh_shape": "b]"}),
    *((f"shared={word}", {"shared": False}) for word in ("false", "F", "NO", "n", "off", "0")),
    *((f"shared={word}", {"shared": True}) for word in ("true", "T", "YES", "y", "on", "1")),
    ("clip=None", {"clip": None}),
    ("label=none", {"label": None}),
    ("label='none'", {"label": "none"}),
    ("x=None", {"x": None}),
    ("x=3.0", {"x": 3.0}),
    ("x=inf", {"x": "inf"}),
    ("x=[1,a,'2']", {"x": [1, "a", "2"]}),
]


@pytest.mark.parametrize(("text", "parsed"), READABLE)
def test_text_is_read_by_the_declared_types(text: str, parsed: dict[str, Any]):
    hparams = sample()
    assert repr(hparams.parse(text)) == repr(parsed)
    assert hparams == sample().with_values(parsed)


@mistakes("hyperparameters")
def test_text_that_cannot_be_read_is_refused_and_sets_nothing(text: str, says: str):
    hparams = sample()
    with pytest.raises(ValueError, match=re.escape(says)):
        hparams.parse(text)
    assert hparams == sample()


# JSON.


FLOATS = st.floats(-1e38, 1e38)  # The range of a hyperparameter whose range is not limited.
ELEMENTS = [st.booleans(), st.integers(-(10**12), 10**12), FLOATS, st.text()]
VALUES = st.one_of(st.none(), *ELEMENTS, *(st.lists(each, min_size=1) for each in ELEMENTS))
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not hasattr(HParams, name) and not keyword.iskeyword(name)
)


@settings(deadline=None)
@given(st.dictionaries(NAMES, VALUES))
def test_any_hparams_come_back_from_a_run_exactly(tmp_path_factory, values: dict[str, Any]):
    hparams, run = HParams(**values), tmp_path_factory.mktemp("run")
    run_files.write(run, hparams, {})
    restored = run_files.read(run).hparams
    assert restored == hparams
    assert repr(restored) == repr(hparams)


def other_value(value: Any) -> Any:
    """Returns a value of the same type that is not the value under test."""
    if isinstance(value, list):
        return [other_value(value[0])] * (len(value) + 1)
    return None if value is None else type(value)()


@given(st.dictionaries(NAMES, VALUES))
def test_any_values_come_back_from_their_text_exactly(values: dict[str, Any]):
    hparams = HParams(**{name: other_value(value) for name, value in values.items()})
    wanted = HParams(**values)
    hparams.parse(", ".join(f"{name}={value!r}" for name, value in wanted.values().items()))
    assert repr(hparams) == repr(wanted)
    assert hparams == wanted


@given(st.text())
def test_any_text_is_read_or_refused_with_a_value_error(text: str):
    hparams = HParams(a="", b=[1], c=None)
    for given_text in (text, f"a={text}", f"b={text}", f"b=[{text}]", f"c={text}"):
        try:
            hparams.parse(given_text)
        except ValueError:
            continue
    hparams.values()


# Resuming a saved run.


def test_only_values_that_change_at_a_resume_are_reported():
    saved = HParams(same=1, edited=1, overridden=1, agreed=1, dropped=1)
    preset = HParams(same=1, edited=2, overridden=1, agreed=2, added=7)
    overrides = {"overridden": 3, "agreed": 2, "same": 1}
    assert describe_differences(saved, preset, overrides) == [
        "overridden: 1 in the saved run, 3 in --hparams; using 3 from --hparams",
        "agreed: 1 in the saved run, 2 in --hparams; using 2 from --hparams",
        "added: not declared in the saved run, 7 in the hparams set; using 7 from the hparams set",
    ]


def test_the_examples_of_the_docs_run_as_shown(own_registries):
    page = Path(__file__).parents[1] / "docs" / "hparams.md"
    ran = doctest.testfile(str(page), module_relative=False)
    assert ran.failed == 0
    assert ran.attempted > 10


def test_construct_reads_each_parameter_that_is_not_given():
    hparams = HParams(moe_top_k=3, moe_gating="top_k")

    def routing(experts, top_k=2, gating="top_1", scale=1.0):
        return experts, top_k, gating, scale

    assert hparams.construct(routing, 8, prefix="moe_", scale=0.5) == (8, 3, "top_k", 0.5)
    # A default never hides a hyperparameter that somebody forgot to declare.
    with pytest.raises(AttributeError, match="moe_scale"):
        hparams.construct(routing, 8, prefix="moe_")
