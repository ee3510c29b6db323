"""The live panel: the kernel's side, and the page's script and style."""
