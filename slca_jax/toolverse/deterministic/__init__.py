"""Environments from tool schemas without a model: dictionary databases behind tools whose names say what they do."""
