"""Tests of conversions from and to Hugging Face."""

import sys

# A PyTorch with CUDA imports triton. Triton and TensorFlow each contain LLVM, and a process that
# loads both is aborted. PyTorch works without triton.
sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
