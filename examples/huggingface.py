"""Converts a Hugging Face model to a run, evaluates it, trains it further, and converts it back.

    python examples/huggingface.py --model=gpt2 --texts=texts.txt --directory=work --steps=100

`--model` is a directory that `git clone` or `huggingface-cli download` made, with a tokenizer, and
`--texts` a file with a document per line. Each command is printed before it runs, as it would be
typed in a shell. At the end, `work/written` is a directory that `transformers` and vLLM can load.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from t2tp.trainer.cli import programs
from t2tp.trainer.run_dir import run_files


def run(program: str, *flags: str) -> None:
    """Runs a program of t2tp in this process; ends with its exit code if it fails."""
    print("\n$", shlex.join([program, *flags]), flush=True)
    code = getattr(programs, program)([program, *flags])
    if code:
        sys.exit(code)


def main() -> None:
    """Runs the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--hparams", default="", help="of the training, such as batch_size=8")
    parser.add_argument("--prompt", default="The")
    args = parser.parse_args()
    converted, data, tuned, written = (
        args.directory / name for name in ("converted", "data", "tuned", "written")
    )
    args.directory.mkdir(parents=True, exist_ok=True)
    prompts = args.directory / "prompts.txt"
    prompts.write_text(args.prompt + "\n", encoding="utf-8")

    # Convert the model to a run at step 0. To decode, the run needs only the model's tokenizer.
    run("t2tp_convert", f"--from_hf={args.model}", f"--output_dir={converted}")
    run("t2tp_decoder", f"--output_dir={converted}", f"--decode_from_file={prompts}")

    # Tokenize the texts with the model's tokenizer, and evaluate the model on them.
    options = f"files={args.texts},documents=lines,vocabulary_from={converted}/huggingface"
    problem = ["--problem=languagemodel_textfiles", f"--data_dir={data}"]
    run("t2tp_datagen", *problem, f"--problem_options={options}")
    measured = [f"--data_dir={data}", "--eval_steps=8"]
    run("t2tp_eval", f"--output_dir={converted}", *measured)

    # Train a new run, which begins with the model's weights.
    model = run_files.read_run(str(converted)).flags["model"]
    run(
        "t2tp_trainer",
        f"--warm_start_from={converted}",
        f"--hparams_set={converted}/run.yaml",
        f"--model={model}",
        *problem,
        f"--output_dir={tuned}",
        f"--train_steps={args.steps}",
        *([f"--hparams={args.hparams}"] if args.hparams else []),
    )
    run("t2tp_eval", f"--output_dir={tuned}", *measured)
    run(
        "t2tp_decoder",
        f"--output_dir={tuned}",
        f"--data_dir={data}",
        f"--decode_from_file={prompts}",
    )

    # Convert the trained run to a Hugging Face checkpoint, with the run's copy of the tokenizer.
    run("t2tp_convert", f"--to_hf={written}", f"--output_dir={tuned}")
    for path in sorted(args.directory.glob("prompts.txt.*.decodes")):
        print(f"{path.name}: {args.prompt}{path.read_text(encoding='utf-8').rstrip()}")


if __name__ == "__main__":
    main()
