"""Models of KerasHub come to t2tp and go back through the files of Hugging Face."""

import numpy as np
import pytest

from t2tp.trainer.cli.programs import t2tp_convert

SIZES = {"vocabulary_size": 96, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 64}
HEADS = {"num_query_heads": 4, "num_key_value_heads": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama3", "GPT2"])
def test_a_model_comes_back_with_its_weights(name, tmp_path):
    keras_hub = pytest.importorskip("keras_hub", reason="pip install -e '.[hf-tests]'")
    heads = HEADS if name == "Llama3" else {"num_heads": 2, "max_sequence_length": 32}
    backbone = getattr(keras_hub.models, f"{name}Backbone")(**SIZES, **heads)
    model = getattr(keras_hub.models, f"{name}CausalLM")(backbone)
    model.export_to_transformers(str(tmp_path / "exported"))
    run = f"--output_dir={tmp_path / 'run'}"
    assert t2tp_convert(["t2tp_convert", f"--from_hf={tmp_path / 'exported'}", run]) == 0
    assert t2tp_convert(["t2tp_convert", f"--to_hf={tmp_path / 'back'}", run]) == 0
    back = type(backbone).from_preset(str(tmp_path / "back"))
    for weight, wanted in zip(back.get_weights(), backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, wanted)
