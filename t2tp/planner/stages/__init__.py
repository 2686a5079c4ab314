"""The cost of pipeline stages.

`steps` lowers the first, the last and a middle stage with few layers. `timing` simulates the table
of a schedule with the seconds of its entries. `staged_step` combines both into a plan.
"""
