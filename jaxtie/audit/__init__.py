"""Audit what a checkpoint says about tying; see README.md."""
