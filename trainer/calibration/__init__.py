"""Measures the speed of a machine for `t2tp_plan`.

`samples` has small steps, each consisting of one kind of operation or collective. A `worker`
process times these steps. `machine` starts workers and makes a cluster file from their
measurements, and `toml_text` formats the file. `disturbance` measures which fraction of the cores
other programs use during the measurements.
"""
