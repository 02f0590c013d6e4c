"""Many runs: a suite (methods, protocols, seeds, settings) in; a plan out, and its runs carried out.

Every step of a plan is a `bench` command that can be repeated and resumed. A pool of processes or Slurm carries it
out. What is done is read off the files that steps leave behind. May import: engine, tokens, records, data, protocol.
"""
