"""What is asked for: YAML files in, checked frozen models out.

Protocols, budgets, datasets, backbones, parameter sets, `--set` values. May import: nothing.
"""
