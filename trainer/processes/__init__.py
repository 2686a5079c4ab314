"""`t2tp_launch`: the processes of a run on one host or on several, and their restarts.

A run is a sequence of *rounds*. In a round the processes run on the hosts that are there; when one
is lost, all end, and the next round goes on from the last checkpoint with the same mesh.

- `addresses`: which hosts there are, and which of them this one is.
- `local_processes`: the processes of this host: environment, output, end.
- `plan`: the processes of a round: how many, on which hosts, with which mesh.
- `crashes`: whether a failure is worth a restart.
- `leader`: the decisions, made by one of the launchers for all.
- `group`: the launchers of several hosts: who leads, who is lost.
- `supervisor`: carries out on one host what the leader decides.
"""
