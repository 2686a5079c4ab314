"""Measures what a machine can do, for `t2tp_plan`.

`samples` are steps of one kind of operation or collective; a `worker` process times them, and
`machine` starts workers and makes a cluster file of what they say, which `toml_text` formats.
"""
