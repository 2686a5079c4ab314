"""The processes of a run: they find each other, share devices, and detect lost processes.

A mesh may span several processes, on one host or on several. `connect` makes them one cluster:

1. `process_spec` reads this process's index and the address of process 0 from arguments, TF_CONFIG
   or Slurm.
2. `rendezvous` exchanges addresses at process 0, in messages signed with the run's secret
   (`messages`).
3. `coordination` starts TensorFlow's servers, watches for lost processes and exchanges strings.
   `loopback` blocks other hosts from the servers if all processes are on one host.
4. `cluster` binds each processor of the mesh to a device of a process.

For example, with a mesh `data:2;model:4` on two processes, process 0 has the processors 0 to 3, and
process 1 has the processors 4 to 7.
"""
