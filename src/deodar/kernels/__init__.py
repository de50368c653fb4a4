"""Compiled operators with one signature each; their references live in `deodar.model`."""
