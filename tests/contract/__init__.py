"""Tests of what users see: cell output, files, numbers; without knowledge of internals."""
