"""The registry: names, look-ups, and messages of failed look-ups."""

import re

import pytest

from t2tp import registry
from t2tp.hparam import HParams

pytestmark = pytest.mark.usefixtures("own_registries")


@pytest.fixture
def animals() -> registry.Registry:
    return registry.Registry("animal")


CASES = [
    ("TransformerLm", "transformer_lm"),
    ("TransformerLM", "transformer_lm"),
    ("MtfResNet", "mtf_res_net"),
    ("MtfBitransformer", "mtf_bitransformer"),
    ("Image2Text", "image2_text"),
    ("already_snake", "already_snake"),
]


@pytest.mark.parametrize(("camel", "snake"), CASES)
def test_class_names_become_snake_case(camel: str, snake: str):
    assert registry.snake_case(camel) == snake


def test_the_decorator_is_used_bare_called_or_named(animals):
    @animals.register
    class BrownBear:
        pass

    @animals.register()
    class PolarBear:
        pass

    @animals.register("panda_1.5")
    class BlackAndWhiteBear:
        pass

    assert animals.names() == ["brown_bear", "panda_1.5", "polar_bear"]
    assert animals.get("brown_bear") is BrownBear
    assert animals.get("polar_bear") is PolarBear
    assert animals.get("panda_1.5") is BlackAndWhiteBear


def test_two_objects_of_one_name_are_refused_naming_both_places(animals):
    @animals.register
    def cat():
        pass

    with pytest.raises(ValueError, match="two animals are named 'cat'") as error:

        @animals.register("cat")
        def other_cat():
            pass

    places = re.findall(r"at (\S+):(\d+)[,;]", str(error.value))
    assert [file for file, _ in places] == [__file__, __file__]
    # Python 3.10 gives a bare decorator the line of its def, later ones its own.
    first, second = (int(line) - cat.__code__.co_firstlineno for _, line in places)
    assert first in (0, 1)
    assert second in (6, 7)
    assert animals.get("cat") is cat


def test_what_cannot_be_called_or_typed_is_refused(animals):
    for register in (animals.register, animals.register("cat")):
        with pytest.raises(ValueError, match="must be a class or a function"):
            register(["cat"])
    for name in ("", "two words", "../up", "a,b"):
        with pytest.raises(ValueError, match="give a name of letters"):
            animals.register(name)(dict)
    with pytest.raises(ValueError, match="give a name"):
        animals.register(lambda: None)


def test_a_miss_names_the_nearest_or_all_as_a_plain_sentence(animals):
    with pytest.raises(LookupError, match="there are no registered animals"):
        animals.get("whale")
    for name in ("brown_bear", "brown_rat", "zebra"):
        animals.register(name)(dict)
    with pytest.raises(LookupError) as error:
        animals.get("BrownBaer")
    assert isinstance(error.value, KeyError)
    assert str(error.value) == "unknown animal 'BrownBaer': did you mean brown_bear, brown_rat?"

    with pytest.raises(LookupError, match="animals are brown_bear, brown_rat, zebra$"):
        animals.get("whom")


def test_help_groups_by_first_word_with_the_first_paragraph_of_the_docstring(animals):
    class Animal:
        """Not the docstring of its children."""

    @animals.register
    class BrownBear(Animal):
        """Eats honey,
        and berries.

        And sleeps.
        """

    @animals.register
    class BrownRat(Animal):
        pass

    @animals.register
    def bee():
        """Makes it."""

    assert animals.help_text().splitlines() == [
        "Animals:",
        "  bee:",
        "    * bee: Makes it.",
        "  brown:",
        "    * brown_bear: Eats honey, and berries.",
        "    * brown_rat",
    ]


def test_each_look_up_makes_new_hparams():
    @registry.register_hparams
    def only_a_test_set():
        return HParams(d_model=4)

    registry.hparams("only_a_test_set").d_model = 8
    assert registry.hparams("only_a_test_set") == HParams(d_model=4)
    assert "only_a_test_set" in registry.list_hparams()
    with pytest.raises(LookupError, match=r"unknown hparams set 'only_a_test_sat': .*_set"):
        registry.hparams("only_a_test_sat")


def test_an_hparams_function_must_return_them():
    @registry.register_hparams
    def only_a_test_forgetful():
        HParams(d_model=4)

    with pytest.raises(TypeError, match=r"test_registry.py:\d+, returned None.*forgot to return"):
        registry.hparams("only_a_test_forgetful")
