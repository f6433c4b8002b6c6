"""Checkpoints: the whole state of a run, written so that a kill at any moment leaves a complete one behind.

One format serves every world size, ZeRO stage, offload and precision. How it is written, in the order of the data:

1. `adapters` knows, for each kind of optimizer that DeepSpeed wraps, which piece of which parameter this rank holds: a
   range of the flattened parameter, inside a flat tensor that the optimizer updates.
2. `fragments` turns the pieces into fragments (kind, parameter, start, values; kind is "weight" or a moment's name),
   checks each against the model's own parameter, and streams them into one file a rank (`tensorfile`, safetensors).
3. `manifest` lists all files with sizes and checksums, and all parameters with their fragments, and is refused unless
   they cover every element exactly once.
4. `store` writes all that into `step-….tmp`, the manifest last, and renames the folder: what has its final name is
   complete. Then `latest`, then retention.

A load goes the other way: each rank reads the ranges that it needs, whoever wrote them, and writes the model's
parameters anew from the masters. `export` makes a Hugging Face folder from a live engine or from a checkpoint. Every
change to the file system goes through `disk`, the one place where tests inject faults.
"""
