"""Proofs: no message is lost, duplicated or reordered, whatever happens to connections and nodes.

`python -m proofs` lists them.  Every proof is a seeded command that writes its observations to a
result file.
"""
