"""Measures the speed of a machine for `t2tp_plan`.

`samples` are steps that consist of one kind of operation or collective. A `worker` process times
them. `machine` starts workers and makes a cluster file from their measurements, and `toml_text`
formats the file. `disturbance` measures the cores that other programs use meanwhile.
"""
