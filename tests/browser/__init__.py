"""Tests in a real browser. A package, so that `scope="package"` ends what they start with them."""
