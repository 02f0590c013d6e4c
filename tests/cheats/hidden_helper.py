"""Imported late by late_import.py."""

import torch


def help_me(ids):
    return torch.zeros_like(ids)
