"""Proofs: no message is lost, duplicated or reordered, whatever happens to connections and nodes.

`python -m proofs list` lists them.  Every proof is a seeded command that writes its observations to
a result file.  It runs on a broker of `test_bed`, records a `history`, and passes it with what the
broker has stored to `checker`; `active_periods` checks when the members of a group were active.
"""
