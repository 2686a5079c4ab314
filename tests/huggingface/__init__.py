"""Tests of what goes to and comes from Hugging Face."""

import sys

# A PyTorch with CUDA brings triton. It and TensorFlow have an LLVM each, and a process that loads
# both is aborted; PyTorch does without it.
sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
