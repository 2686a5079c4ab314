"""Measures one device of this machine, and the links between its devices, for `t2tp_plan`.

`samples` has small steps, each consisting of one kind of operation or of collectives. `measure`
times them and makes a cluster file of shares, which `t2tp.toml` formats.
"""
