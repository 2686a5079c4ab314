"""What a pipeline's stages cost.

`steps` lowers what the first, the last and the other stages compute, with few layers; `timing` runs
a schedule's table with the seconds that follow; `staged_step` puts both together.
"""
