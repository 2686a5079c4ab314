#!/bin/sh
# Trains a language model on a mesh of four virtual CPU devices, from nothing to a generated text.
#   examples/demo.sh [DIRECTORY]
# An interrupted demo resumes when it is started again. DEMO_STEPS sets the length of the training.
set -eu
directory=${1:-demo}
steps=${DEMO_STEPS:-700}
run="--problem=languagemodel_python_stdlib --model=transformer_lm --hparams_set=transformer_lm_tiny
  --data_dir=$directory/data --output_dir=$directory/run --mesh_shape=data:2;model:2
  --hparams=num_hidden_layers=3,max_length=256,learning_rate_constant=0.045"

echo "This demo trains a small language model of Python code on four virtual CPU devices: it makes the"
echo "data, trains $steps steps, writes some code, and compares the model with gzip and xz. About five"
echo "minutes on two cores. Everything it writes is in $directory."
echo
echo "== 1. The data: this Python's own standard library, as 2,048 kinds of tokens"
t2tp_datagen --problem=languagemodel_python_stdlib --vocab_size=2048 --data_dir="$directory/data"

echo
echo "== 2. Training on a mesh of 2 x 2: 'data' splits the batch, 'model' splits heads, d_ff and vocab"
t2tp_trainer $run --schedule=train_and_evaluate --train_steps="$steps" --local_eval_frequency=100 \
  --save_checkpoints_steps=200 --log_step_count_steps=10

echo
echo "== 3. A sample: the model continues 'class Reader'"
echo "class Reader" | t2tp_decoder --output_dir="$directory/run" --data_dir="$directory/data" \
  --decode_interactive --decode_hparams=temperature=0.7,extra_length=200

echo
echo "== 4. The model compared with compressors, on text that it has not seen"
python "$(dirname "$0")/compare_with_compressors.py" "$directory/data" "$directory/run"
t2tp_trainer $run --explain_layout >/dev/null

echo
echo "The curves of the run:             tensorboard --logdir $directory/run"
echo "How the mesh splits each tensor:   $directory/run/layout.html, in a browser"
echo "A better model, in half an hour:   DEMO_STEPS=$((6 * steps)) make demo DEMO=${directory}_longer"
