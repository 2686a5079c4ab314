"""Compares the time of `t2tp_eval --tasks` with lm-evaluation-harness's own `--model hf`.

    python benchmarks/harness_tasks.py [--documents=200] [--layers=4] [--width=256] [--turns=3]

Makes a Llama of random numbers, and the six tasks of the tests. Both commands run in turns in one
process, in batches of 16 rows. In each turn, both load the model, and t2tp also traces its
programs. Prints CPU times and wall times, and the ratios of their medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_WORDS = (
    *("the", "quick", "brown", "fox", "jumps", "over"),
    *("lazy", "dog", "and", "a", "cat", "river"),
)
_CHOICE = "output_type: multiple_choice\ndoc_to_choice: '{{choices}}'\ndoc_to_target: answer\n"
_TEXT = "output_type: generate_until\ndoc_to_target: x\nmetric_list: [{metric: exact_match}]\n"
_TASKS = {
    "choice": _CHOICE + "doc_to_text: 'Q: {{question}}\\nA:'\nmetric_list: [{metric: acc_norm}]\n",
    "no_context": _CHOICE + "doc_to_text: ''\n",
    "few_shot": _CHOICE + "doc_to_text: '{{question}}'\nnum_fewshot: 1\nfewshot_split: test\n",
    "perplexity": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
    "metric_list: [{metric: bits_per_byte}]\n",
    "continue": _TEXT + "doc_to_text: '{{question}}'\n"
    "generation_kwargs: {until: [' the', 'q'], max_gen_toks: 36, do_sample: false}\n",
    "reply": _TEXT + "doc_to_text: '{{text}}'\n"
    "generation_kwargs: {until: [fox], max_gen_toks: 8}\n",
}
NAMES = [f"tiny_{name}" for name in _TASKS]


def write_tasks(directory: Path, count: int, longest: int = 0) -> None:
    """Writes the tasks.

    Args:
      directory: the new directory.
      count: number of documents.
      longest: maximum number of words in a question or text; 0: always 5 in a question and 20 in a
        text.
    """
    directory.mkdir()
    draw = random.Random(0)

    def text(words: int) -> str:
        words = draw.randint(1, longest) if longest and words > 2 else words
        return " ".join(draw.choices(_WORDS, k=words))

    documents = [
        {"question": text(5), "choices": [text(1), text(2)], "answer": 1, "text": text(20)}
        for _ in range(count)
    ]
    data = directory / "documents.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in documents))
    where = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
    for name, body in _TASKS.items():
        task = f"task: tiny_{name}\ntest_split: test\n{where}{body}"
        (directory / f"{name}.yaml").write_text(task)


def write_model(directory: Path, layers: int, width: int) -> None:
    """Writes a Llama with a tokenizer, in the format of `transformers`."""
    import tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([" ".join(_WORDS)] * 9, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<s>", bos_token="<s>"
    ).save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"documents": 200, "longest": 60, "layers": 4, "width": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(NAMES))
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"

    from lm_eval.__main__ import cli_evaluate

    from t2tp.trainer.cli.programs import t2tp_convert, t2tp_eval

    directory = Path(tempfile.mkdtemp())
    write_tasks(directory / "tasks", args.documents, args.longest)
    write_model(directory / "hf", args.layers, args.width)
    run, hf = directory / "run", directory / "hf"
    assert t2tp_convert(["t2tp_convert", f"--from_hf={hf}", f"--output_dir={run}"]) == 0

    def ours() -> None:
        flags = [f"--output_dir={run}", f"--tasks={args.tasks}", f"--task_dir={directory}/tasks"]
        assert t2tp_eval(["t2tp_eval", *flags]) == 0

    def theirs() -> None:
        flags = ["--model=hf", f"--model_args=pretrained={hf},dtype=float32", "--device=cpu"]
        flags += [f"--tasks={args.tasks}", f"--include_path={directory}/tasks", "--batch_size=16"]
        sys.argv = ["lm_eval", *flags, f"--output_path={directory}/theirs"]
        cli_evaluate()

    taken: dict[Callable, list[tuple[float, float]]] = {ours: [], theirs: []}
    for turn in range(args.turns):
        for program, seconds in taken.items():
            began = time.process_time(), time.perf_counter()
            with contextlib.redirect_stdout(sys.stderr):
                program()
            spent = time.process_time() - began[0], time.perf_counter() - began[1]
            seconds.append(spent)
            print(f"{turn} {program.__name__}: {spent[0]:.1f} s of the processor, {spent[1]:.1f} s")
    for kind, name in enumerate(("processor", "clock")):
        ours_s, theirs_s = (statistics.median(x[kind] for x in each) for each in taken.values())
        print(f"{name}: {ours_s:.1f} s and {theirs_s:.1f} s, ratio {ours_s / theirs_s:.2f}")


if __name__ == "__main__":
    main()
