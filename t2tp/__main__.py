"""`python -m t2tp` lists the programs, and `python -m t2tp t2tp_trainer ...` runs one."""

import runpy

runpy.run_module("t2tp.trainer.cli", run_name="__main__", alter_sys=True)
