"""The live panel: the kernel side, and the page's script and style sheet."""
