"""Fine-tunes a model of Hugging Face on conversations with LoRA, and writes it back.

    python examples/fine_tune_with_lora.py MODEL CHATS.jsonl OUTPUT [STEPS]

MODEL is a directory with `config.json`, `*.safetensors` and `tokenizer.json`, such as a clone of
`meta-llama/Llama-3.2-1B-Instruct`. A line of CHATS.jsonl is `{"messages": [{"role": "user",
"content": "..."}, {"role": "assistant", "content": "..."}]}`, or `{"prompt": "...", "completion":
"..."}`. OUTPUT gets `run` (the model as a run), `data`, `adapters` (the run that trains them),
`peft` (the adapters, for PEFT and vLLM) and `merged` (the full model). If you start the script
again after an interruption, it continues.

The script calls the programs of the command line with their flags. To train on several devices, for
instance, add `--mesh_shape` and `--layout`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from t2tp.trainer.cli.programs import t2tp_convert, t2tp_datagen, t2tp_trainer
from t2tp.trainer.run_dir import run_files

LORA = "lora_rank=8,lora_alpha=16,lora_targets=[query,key,value,output,feed_forward]"
SCHEDULE = "batch_size=8,learning_rate_constant=2e-3,learning_rate_warmup_steps=2"


def run(program: Callable[[Sequence[str]], int], name: str, *flags: str) -> None:
    """Runs a program; if it fails, ends with its exit code."""
    print("==", name, *flags, flush=True)
    code = program([name, *flags])
    if code:
        sys.exit(code)


def main(model: Path, chats: Path, output: Path, steps: int) -> None:
    """Converts, fine-tunes and writes back."""
    base, data, adapters = output / "run", output / "data", output / "adapters"
    if not base.exists():
        run(t2tp_convert, "t2tp_convert", f"--from_hf={model}", f"--output_dir={base}")
    # The run has the model's tokenizer, and its chat template if there is one.
    problem = [
        "--problem=instructions",
        f"--problem_options=files={chats},vocabulary_from={base / 'huggingface'}",
        f"--data_dir={data}",
    ]
    run(t2tp_datagen, "t2tp_datagen", *problem)
    run(
        t2tp_trainer,
        "t2tp_trainer",
        *problem,
        f"--model={run_files.read_run(str(base)).flags['model']}",
        f"--hparams_set={base / 'run.yaml'}",
        f"--hparams={LORA},{SCHEDULE}",
        f"--warm_start_from={base}",
        f"--output_dir={adapters}",
        f"--train_steps={steps}",
        "--schedule=train",
        "--log_step_count_steps=1",
    )
    for directory, flags in ((output / "peft", []), (output / "merged", ["--merge_lora"])):
        if not directory.exists():
            of_run = [f"--to_hf={directory}", f"--output_dir={adapters}"]
            run(t2tp_convert, "t2tp_convert", *of_run, *flags)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:4]), int(sys.argv[4]) if len(sys.argv) == 5 else 100)
