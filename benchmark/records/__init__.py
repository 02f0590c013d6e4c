"""What is written down: counts in, run records and scores out. No torch.

The question, the record, metrics, statistics, provenance and the audit. May import: protocol.
"""
