"""The ranks of a run: who they are, how they start and end together, and the one thing that they agree on per step.

In the order in which a run passes through it:

    signals        a stop request (a signal, a time limit) is noted by a thread; set before torch is imported
    launcher       a rank under DeepSpeed's launcher watches that launcher: its loss is a stop request
    quiet          dependencies say only what the user must know; set before torch is imported
    facts          rank, world size and meeting point, from whichever launcher there is
    rendezvous     the ranks meet at the master's port and learn each other's hosts and process ids
    failure        what a failure of the job is
    channel        from the meeting on a rank that fails or dies ends the whole job, with that failure
    process_group  device, threads, torch's and DeepSpeed's process groups
    agreement      the asynchronous all-reduce of each step: tokens, sequence present, stop requested, failed
    runtime        `Dist`, which is all of this for the trainer
    processes      what the system knows about a process, and how this one is left

`signals`, `launcher`, `quiet`, `facts` and `processes` import neither torch nor DeepSpeed. This package imports
nothing: its modules are imported by name.
"""
