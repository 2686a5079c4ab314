"""Each registered hparams set builds its model on its mesh and sets no value that is never read.

Programs are abstract, without devices and memory, so even the largest set costs little.
"""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.mesh.layout_warnings import layout_warnings
from t2tp.optim import apply_gradients
from t2tp.planner.depth import period
from t2tp.program.abstract_program import AbstractProgram
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.planning import request


def ours(registered) -> bool:
    """Returns whether t2tp itself registered an entry; other tests register entries, too."""
    return registered.__module__.startswith("t2tp.")


SETS = [name for name in registry.list_hparams() if ours(registry.hparams_function(name))]
RANGED = [n for n in registry.list_ranged_hparams() if ours(registry.ranged_hparams_function(n))]


def marked(hparams_set: str):
    """Marks a set as slow unless it is tiny."""
    return pytest.param(hparams_set, marks=[] if "tiny" in hparams_set else pytest.mark.slow)


EACH_SET = [marked(name) for name in SETS]
VOCAB_SIZE, TRAIN_STEPS = 32768, 100_000
# Sets without a mesh shape are tested on USUAL_MESH, or on MESH_OF_A_ROW if the batch is one row.
USUAL_MESH, MESH_OF_A_ROW = "data:2;model:2", "model:2"
# Language models that also classify.
OF_CLASSES_TOO = ("transformer_encoder", "transformer_moe_encoder")
READ_BY_THE_TRAINER = {"batch_size", "batch_size_unit", "max_length", "mesh_shape", "layout"}
# Numbers of layers; 0 stands for `num_hidden_layers`.
DEPTHS = ("num_hidden_layers", "num_encoder_layers", "num_decoder_layers")
# Hparams whose values decide which other hparams are read.
SWITCHES = ("optimizer", "learning_rate_schedule", "position", "attention_type")
# tests/models/test_preferences.py and test_distillation.py compute the losses that read these.
OF_OTHER_LOSSES = ("preference_", "distillation_")
# The image sets set the block sizes of every attention type, so that a set derived from them needs
# to change only the type.
SAID_FOR_CHILDREN = {"block_length", "block_height", "block_width"}
TENSOR2TENSOR = json.loads((Path(__file__).parent / "tensor2tensor_hparams.json").read_text())
SETS_PAGE = Path(__file__).parent.parent / "docs/hparams_sets.md"
SMALL_IMAGES = ("mlp_tiny", "vit_tiny", "mtf_resnet_digits")

# Rows of the page's table of sizes: set, vocabulary or number of classes, parameters, published
# parameters.
SIZES = re.findall(
    r"^\| `(\w+)` \| (\d+) \| ([\d,]+) \| ([\w. ]+) \|", SETS_PAGE.read_text("utf-8"), re.MULTILINE
)
UNITS = {"million": 1e6, "billion": 1e9}


class RecordingHParams(HParams):
    """An HParams that records which values were read."""

    def __init__(self, hparams: HParams):
        super().__init__()
        self._declarations.update(hparams._declarations)
        self._values.update(hparams.values())
        object.__setattr__(self, "_asked_for", set())

    def get(self, name):
        self._asked_for.add(name)
        return super().get(name)


@dataclass(frozen=True)
class Built:
    """Properties of a set's model, found by building the model."""

    parameters: int  # trained parameters
    dimensions: frozenset[str]  # of all tensors
    idle: tuple[str, ...]  # warnings about the layout
    read: frozenset[str]  # hparams that were read


def features_of(hparams_set, hparams, rows, classes=0) -> dict[str, t2tp.Feature]:
    """Returns the features of a problem that fits the set's model."""
    of_rows = hparams.with_values({"batch_size": rows, "batch_size_unit": "sequences_per_batch"})
    model, shape = registry.model_of_hparams(hparams_set), size_of_images(hparams_set)
    features = dict(request(model, of_rows, VOCAB_SIZE, shape).features(of_rows))
    if classes:
        ids = features["targets"]
        batch = mtf.Shape(ids.shape.dims[:1])
        features = dict.fromkeys(made(hparams_set, hparams, VOCAB_SIZE, classes).takes, ids)
        features |= {"targets": t2tp.Feature(batch, tf.int32), "weights": t2tp.Feature(batch)}
    return features


def size_of_images(hparams_set: str) -> tuple[int, int, int]:
    if hparams_set in SMALL_IMAGES:
        return (8, 8, 1)
    is_small = registry.hparams(hparams_set).values().get("stem", "cifar") == "cifar"
    is_small &= not hparams_set.startswith("vit")
    return (32, 32, 3) if is_small else (224, 224, 3)


def made(hparams_set: str, hparams: HParams, vocab_size: int, classes: int = 0):
    """Returns the set's model; its problem has `classes` classes, or tokens if `classes` is 0."""
    name = registry.model_of_hparams(hparams_set)
    sizes = {"targets": vocab_size}
    if classes:
        sizes = {"inputs": vocab_size, "targets": classes}
    elif "inputs" in registry.model(name).takes:
        sizes["inputs"] = vocab_size
    return registry.model(name)(hparams, sizes)


def build(hparams_set: str, changes=MappingProxyType({}), vocab=VOCAB_SIZE, classes=0) -> Built:
    """Builds the loss of one microbatch on the set's mesh, and the update of a weight."""
    changed = registry.hparams(hparams_set)
    for name, value in changes.items():
        changed.set(name, value)
    hparams = RecordingHParams(changed)
    shapes, parameters = [], []

    def step(mesh, features):
        model = made(hparams_set, hparams, vocab, classes)
        loss = model.loss(mesh, features, training=True).loss
        parameters.extend(v.size for v in mesh.graph.trainable_variables)
        shapes.extend(t.shape for op in mesh.graph.operations for t in op.outputs)
        return {"loss": loss}

    rows = sequences_per_batch(changed, Layout.from_hparams(changed))
    assert rows % changed.microbatches == 0
    program = AbstractProgram(
        step,
        features_of(hparams_set, changed, rows // changed.microbatches, classes),
        layout=Layout.from_hparams(hparams),
    )
    update_a_weight(hparams)
    return Built(
        parameters=sum(parameters),
        dimensions=frozenset(name for shape in shapes for name in shape.dimension_names),
        idle=tuple(layout_warnings(program.layout, shapes)),
        read=frozenset(hparams._asked_for) | READ_BY_THE_TRAINER | {"microbatches"},
    )


def update_a_weight(hparams: HParams) -> None:
    """Reads the hparams of optimizers and schedules by updating a model of two matrices.

    Sets exclude the name of the first from weight decay. Only the second has Muon's role.
    """

    def step(mesh, features):
        dims = [mtf.Dimension("d_model", 128), mtf.Dimension("d_ff", 128)]
        matrix = mtf.Role("matrix", dims[:1], dims[1:])
        roles = {"embedding": None, "kernel": matrix}
        shape = mtf.Shape(dims)
        weights = [mtf.get_variable(mesh, name, shape, role=role) for name, role in roles.items()]
        loss = mtf.add_n([mtf.reduce_mean(mtf.square(weight)) for weight in weights])
        return apply_gradients(loss, mesh, hparams, TRAIN_STEPS)

    t2tp.Program(step).trace()


@functools.cache
def on_its_mesh(hparams_set: str, classes: int = 0) -> Built:
    """Builds the set with one period of its layers, because further layers add no dimension."""
    hparams = registry.hparams(hparams_set)
    usual = USUAL_MESH if hparams.batch_size > 1 else MESH_OF_A_ROW
    few = {name: period(hparams) for name in DEPTHS if hparams.values().get(name)}
    changes = {"mesh_shape": hparams.mesh_shape or usual, **few}
    return build(hparams_set, changes, classes=classes)


def read_by(hparams_set: str) -> frozenset[str]:
    """Returns the hparams that the set's model reads, on any kind of problem."""
    read = on_its_mesh(hparams_set).read
    if registry.model_of_hparams(hparams_set) in OF_CLASSES_TOO:
        read |= on_its_mesh(hparams_set, classes=2).read
    return read


def said_by(hparams_set: str, monkeypatch) -> list[str]:
    """Returns the hparams that the set and its parents set, in the order of the calls."""
    said = []
    original = HParams.set

    def noting(self, name, value):
        said.append(name)
        original(self, name, value)

    with monkeypatch.context() as patched:
        patched.setattr(HParams, "set", noting)
        registry.hparams(hparams_set)
    return said


@pytest.mark.parametrize("hparams_set", EACH_SET)
def test_each_set_is_laid_out_on_its_mesh_where_nothing_is_idle(hparams_set):
    hparams = registry.hparams(hparams_set)
    built = on_its_mesh(hparams_set)
    if hparams.mesh_shape:
        assert built.idle == ()
    assert {rule.split(":")[0] for rule in hparams.layout.split(";")} - built.dimensions == set()


@pytest.mark.parametrize("hparams_set", EACH_SET)
def test_what_a_set_says_is_read(hparams_set, monkeypatch):
    """Ignores values that a later switch made obsolete, such as options of another optimizer."""
    said = said_by(hparams_set, monkeypatch)
    last_switch = max((n for n, name in enumerate(said) if name in SWITCHES), default=0)
    since = set(said[last_switch:]) - SAID_FOR_CHILDREN
    assert since - read_by(hparams_set) == set()


@pytest.mark.ci_only  # It builds all sets.
@pytest.mark.slow
@pytest.mark.parametrize("model", registry.list_models())
def test_every_hparam_that_the_sets_of_a_model_declare_is_read(model):
    """Also tries other values of switches, because some hparams are read only with these values."""
    sets = [name for name in SETS if registry.model_of_hparams(name) == model]
    read = set().union(*(read_by(name) for name in sets))
    smallest = min(sets, key=lambda name: on_its_mesh(name).parameters)
    kinds = {"position": ["rotary", "relative"], "attention_type": ["local"]}
    if model == "mtf_image_transformer":
        kinds = {"attention_type": ["full", "local_1d", "local_2d"]}
    elif model == "mtf_resnet":  # 8 groups, because the smallest set has only 16 channels.
        read |= build(smallest, {"mesh_shape": "", "norm_type": "group", "norm_groups": 8}).read
    for switch, values in kinds.items():
        for value in values if switch in registry.hparams(smallest) else []:
            read |= build(smallest, {"mesh_shape": "", switch: value}).read
    hparams = RecordingHParams(registry.hparams(smallest))
    hparams.parse("learning_rate_decay_steps=10,skip_step_sigma=6")
    # The excluded schedule depends on a transformer's d_model.
    schedules = set(registry.list_learning_rate_schedules()) - {"rsqrt_hidden_size"}
    hparams.learning_rate_schedule = "*".join(sorted(schedules))
    for hparams.optimizer in registry.list_optimizers():
        update_a_weight(hparams)
    declared = set().union(*(registry.hparams(name).values() for name in sets))
    declared -= {name for name in declared if name.startswith(OF_OTHER_LOSSES)}
    assert declared - read - hparams._asked_for == set()


@pytest.mark.parametrize("hparams_set", map(marked, [name for name, *_ in SIZES]))
def test_a_set_has_the_published_number_of_parameters(hparams_set):
    ((vocab, shown, published),) = [row[1:] for row in SIZES if row[0] == hparams_set]
    # BERT's mask token is part of the published vocabulary; ours is added to the vocabulary.
    vocab = int(vocab) - hparams_set.startswith("bert")
    parameters = build(hparams_set, {"mesh_shape": ""}, vocab).parameters
    assert f"{parameters:,}" == shown
    if published != "the same":
        number, unit = published.split()
        rounding = 10.0 ** -len(number.partition(".")[2]) / 2
        wanted = pytest.approx(float(number), rel=0.02, abs=rounding)
        assert parameters / UNITS[unit] == wanted


@pytest.mark.slow
def test_t5_becomes_its_version_1_1():
    changes = {"mlp": "geglu", "d_ff": 2048, "tie_embeddings": False, "shared_embedding": True}
    built = build("t5_base", {**changes, "mesh_shape": ""}, 32128)
    assert built.parameters == 247_577_856


def as_written(value) -> str:
    """Formats a value as a cell of the page's tables; the axes of a mesh are sorted."""
    return ";".join(sorted(str(value).split(";")))


def test_the_sets_of_tensor2tensor_have_its_values_but_for_those_that_the_page_names():
    """The stored table comes from tensor2tensor's functions, with our names of the hparams."""
    rows = [row.split("|") for row in SETS_PAGE.read_text("utf-8").splitlines() if "|" in row]
    cells = [[cell.strip(" `") for cell in row[1:-1]] for row in rows if len(row) == 7]
    named = {(row[0], row[1]): (row[2], row[3]) for row in cells if row[0] in TENSOR2TENSOR}
    found = {}
    for hparams_set, originals in TENSOR2TENSOR.items():
        hparams = registry.hparams(hparams_set)
        for name, original in originals.items():
            theirs, ours = as_written(original), as_written(hparams.get(name))
            if theirs != ours:
                found[hparams_set, name] = theirs, ours
    assert found == named
    assert len(TENSOR2TENSOR) == 95


def test_the_page_leaves_out_no_set_that_there_is():
    left_out = SETS_PAGE.read_text("utf-8").split("Left out:")[1].split("##")[0]
    firsts = (row.split("|")[1] for row in left_out.splitlines() if row.startswith("| `"))
    names = {name for first in firsts for name in re.findall(r"`(\w+)`", first)}
    assert len(names) == 148 - 95
    assert len(SIZES) == 43
    assert names & set(SETS) == set()


def test_a_set_says_its_model_by_its_name_or_when_it_is_registered(own_registries):
    assert registry.model_of_hparams("transformer_lm_tiny") == "transformer_lm"
    assert registry.model_of_hparams("transformer_moe_encdec_tiny") == "transformer_moe_encdec"
    assert registry.model_of_hparams("gpt3_175b") == "transformer_lm"
    with pytest.raises(registry.UnknownNameError, match="gpt3_175b"):
        registry.model_of_hparams("gpt3_175")
    registry.register_hparams("for_anything")(HParams)
    with pytest.raises(registry.UnknownNameError, match="'for_anything' does not say which model"):
        registry.model_of_hparams("for_anything")


# Name of a ranged set -> prefix of the sets that it is for.
RANGES = {
    "basic1": "",
    "transformer_base_range": "transformer_",
    "transformer_moe_range": "transformer_moe_",
    "adafactor_range": "mtf_transformer_",
    "mtf_image_transformer_range": "mtf_image_transformer_",
    "image_classifier_range": ("vit_", "mlp_"),
    "mtf_resnet_range": "mtf_resnet_",
}


@pytest.mark.parametrize("name", RANGED)
def test_a_ranged_set_fits_the_sets_of_its_family(name):
    sets = [hparams_set for hparams_set in SETS if hparams_set.startswith(RANGES[name])]
    assert sets
    for hparams_set in sets:
        hparams = registry.hparams(hparams_set)
        drawn = registry.ranged_hparams(name).apply(0, hparams)
        assert {key: hparams.get(key) for key in drawn} == drawn
