"""Imported late by late_import.py."""

import torch


def help_me(index):
    return torch.zeros_like(index)
