"""Transfer of hyperparameters: factors of mup 1.0.0 and of CompleteP.

`test_zero.py` tests a transferred step on a mesh.
"""

import re

import pytest

from t2tp import mtf
from t2tp.building.mesh import declared
from t2tp.building.transfer import Growth
from t2tp.optim.adam import Adam
from t2tp.optim.muon import Muon
from t2tp.optim.sgd import Sgd
from tests.optim.regression import make_hparams
from tests.optim.sharded_programs import make

# The lm of these tests has a d_model of 16, and this set has one of 128.
SET = {"transfer_from": "transformer_lm_plain_tiny"}


def role(kind, inputs, outputs):
    dims = [[mtf.Dimension(name, size)] for name, size in (("i", inputs), ("o", outputs)) if size]
    return mtf.Role(kind, *dims) if inputs else mtf.Role(kind, (), *dims)


CASES = [
    # mup's values: `set_base_shapes` with a model 4 times as wide, then `MuAdamW` and `MuSGD`.
    # mup's readout has the rates 1 (Adam) and 4 (SGD), and divides its logits by 4;
    # `Optimizer.rate_factor` says how our heads differ.
    (
        Adam(None, make_hparams()),
        {"hidden": 1 / 4, "input": 1, "head": 1 / 4, "embedding": 1, "bias": 1},
    ),
    (
        Sgd(None, make_hparams()),
        {"hidden": 1, "input": 4, "head": 4 / 4**2, "embedding": 4, "bias": 4},
    ),
    # An update with the size of Adam's has a spectral norm proportional to the root of the
    # width.
    (
        Muon(None, make_hparams()),
        {"hidden": 1 / 2, "input": 2 / 2, "head": 1 / 4, "embedding": 1, "bias": 1},
    ),
    (Muon(None, make_hparams(optimizer_muon_scale="original")), {"hidden": 1, "input": 1}),
]


@pytest.mark.parametrize(("optimizer", "factors"), CASES)
def test_factors_of_a_wide_model_are_those_of_mup(optimizer, factors):
    variables = {
        "hidden": (role("matrix", 256, 256), Growth(4, 4)),
        "input": (role("matrix", 10, 256), Growth(1, 4)),
        "head": (role("head", 256, 10), Growth(4, 1)),
        "embedding": (role("embedding", 10, 256), Growth(1, 4)),
        "bias": (role("bias", 0, 256), Growth(1, 4)),
    }
    for name, factor in factors.items():
        assert optimizer.rate_factor(*variables[name]) == pytest.approx(factor), name


@pytest.mark.parametrize(("family", "tuned"), [("lm", "lm_plain"), ("moe", "moe")])
def test_initial_values_follow_the_sizes_of_the_small_model(family, tuned):
    # An expert's matrix scales like other matrices; the router scales like a head.
    every = {"moe_every": 2} if family == "moe" else {}
    wider = {"transfer_from": f"transformer_{tuned}_tiny", "num_hidden_layers": 4, **every}
    program = make(family, "one device", 0, "adam", **wider)
    variables = {v.name: v for v in program.graph()[0].trainable_variables}
    sizes = {"d_model": 128, "d_ff": 512, "num_heads": 4, "d_kv": 32, "num_hidden_layers": 2}
    small = make(family, "one device", 0, "adam", **sizes, **every)
    wide = {v.name: v for v in small.graph()[0].trainable_variables}
    powers = {"matrix": -0.5, "head": -1.0} | {n: -1.0 for n in variables if "router" in n}
    for name, variable in variables.items():
        other = wide[re.sub(r"layer_(\d+)", lambda each: f"layer_{int(each[1]) % 2:02d}", name)]
        of_small = getattr(other.get_master().initializer, "stddev", 0.0)
        growth = [mtf.Shape(declared(v).role.inputs).size for v in (variable, other)]
        power = powers.get(name, powers.get(declared(variable).role.kind, 0.0))
        found = getattr(variable.get_master().initializer, "stddev", 0.0)
        assert found == pytest.approx(of_small * (growth[0] / growth[1]) ** power), name


def test_a_set_with_other_variables_and_an_optimizer_without_rules_are_refused():
    with pytest.raises(ValueError, match="mlp_tiny.* d_"):
        make("lm", "one device", 0, transfer_from="mlp_tiny")
    with pytest.raises(ValueError, match="num_encoder_layers=0"):
        make("encdec", "one device", 0, transfer_from="transformer_tiny", num_encoder_layers=3)
    with pytest.raises(ValueError, match="adafactor"):
        make("lm", "one device", 0, "adafactor", **SET)
