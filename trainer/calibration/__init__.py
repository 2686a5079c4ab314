"""Measures the speed of a machine for `t2tp_plan`.

`samples` are steps that consist of one kind of operation or collective. A `worker` process times
them, and `machine` starts workers and makes a cluster file of their measurements, which `toml_text`
formats. `disturbance` measures the cores that other programs use meanwhile.
"""
