"""Torch as a run uses it: its global settings and the device."""
