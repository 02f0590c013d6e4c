"""One run: a question in, a record out.

Sessions, batches, the only optimiser, the evaluator, checkpoints. May import: methods, tokens, records, data, protocol.
"""
