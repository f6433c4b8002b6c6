"""Data: from sources to batches, in one order that depends on the seed and the epoch alone.

`sources` (and `files`, `readers`, `records`, `hub_sources` behind it) says what is read; `order` and `streams` in which
order, and dealt to which lane; `lanes`, `feed` and `packing` turn documents into sequences with the state that follows
each; `loader` and `evaluation` make batches of them. `tokenizer` loads, `tokenizer_training` trains, `sample_data`
writes text to begin with.
"""

from __future__ import annotations
