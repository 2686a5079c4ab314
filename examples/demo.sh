#!/bin/sh
# From nothing to a trained language model on a mesh of four virtual CPU devices.
#   examples/demo.sh [DIRECTORY]
# Interrupt it and start it again: it goes on where it was. DEMO_STEPS changes the length of the training.
set -eu
directory=${1:-demo}
steps=${DEMO_STEPS:-1000}
run="--problem=languagemodel_python_stdlib --model=transformer_lm --hparams_set=transformer_lm_tiny
  --data_dir=$directory/data --output_dir=$directory/run --mesh_shape=data:2;model:2"

echo "== 1. The data: this Python's own standard library"
t2tp_datagen --problem=languagemodel_python_stdlib --data_dir="$directory/data"

echo "== 2. Training on a mesh of 2 x 2: the batch is split over 'data', heads, d_ff and vocab over 'model'"
t2tp_trainer $run --schedule=train_and_evaluate --train_steps="$steps" --local_eval_frequency=0 \
  --save_checkpoints_steps=200

echo "== 3. The same validation text, in bits per byte"
python "$(dirname "$0")/compare_with_compressors.py" "$directory/data" "$directory/run"

echo "== 4. A sample: what comes after 'def '"
t2tp_trainer $run --schedule=predict --decode_prompt="def " --decode_length=120 --decode_temperature=0.7

echo
echo "The run is in $directory/run. Look at it with:  tensorboard --logdir $directory/run"
